#include "window.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <system_error>

#include "bindings.h"

namespace stoker {
namespace {

// Python's OSError, of the kind that the number means.
void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& raised) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(raised.code().value(), raised.what()).ptr());
  }
}

nb::object view_of(const uint8_t* data, size_t num_bytes) {
  char* begin = const_cast<char*>(reinterpret_cast<const char*>(data));
  return nb::steal(PyMemoryView_FromMemory(begin, static_cast<Py_ssize_t>(num_bytes), PyBUF_READ));
}

}  // namespace

void bind_window(nb::module_& module) {
  nb::register_exception_translator(translate, nullptr);

  nb::class_<ChunkMap>(module, "ChunkMap", "A chunk's file in memory, for as long as anything refers to it.")
      .def(nb::init<int, size_t>(), "fd"_a, "num_bytes"_a, WithoutLock{},
           "Map a file that is open for reading. OSError where the system refuses.")
      .def_prop_ro("num_bytes", &ChunkMap::num_bytes, "Of the file.")
      .def_prop_ro("is_mapped", &ChunkMap::is_mapped, "Whether it is the page cache, not memory that it was read into.")
      .def("view", [](const ChunkMap& self) { return view_of(self.data(), self.num_bytes()); },
           nb::keep_alive<0, 1>(), nb::sig("def view(self) -> memoryview"), "Return its bytes, as long as it lives.");

  module.def("unmap", [](const nb::typed<nb::list, ChunkMap>& maps) {
               std::vector<ChunkMap> gone;
               for (nb::handle one : maps) gone.push_back(std::exchange(nb::cast<ChunkMap&>(one), {}));
               unmap(std::move(gone));
             }, "maps"_a, "Let go of maps, which must not be used any more, in one go.");

  nb::class_<WindowMemory>(module, "WindowMemory", "Memory that windows are read into, one after the other.")
      .def(nb::init<>())
      .def("rest", &WindowMemory::rest, "Say that a window needed none: after many in a row, the system gets it back.")
      .def("clear", &WindowMemory::clear, WithoutLock{}, "Give the system back what is not in use.")
      .def_prop_ro("num_free", &WindowMemory::num_free, "Memories that wait to be used again.");

  module.def("read_chunks", &read_chunks, "files"_a, "memory"_a, "waits"_a, WithoutLock{},
             "Read files, given by descriptor and bytes, by several threads, and return them in memory. `waits`: for\n"
             "moments, where as much memory as is wanted at one time is in use. OSError: the disk failed, or a file is\n"
             "shorter than it was.");

  nb::class_<Table>(module, "TableLayout", "What the rows of one table are: the arrays that each chunk has of it.")
      .def("__init__", [](Table* self, size_t record_bytes) { new (self) Table{record_bytes, {}, {}, {}}; },
           "record_bytes"_a, "Records are an array, if they have any bytes.")
      .def("add_strips", [](Table& self, std::vector<int64_t> value_bytes) {
             self.groups.push_back({true, false, std::move(value_bytes), {}, {}, {}});
           }, "value_bytes"_a, "Add fields whose lists lie side by side: arrays of places and of strips.")
      .def("add_field", [](Table& self, int64_t value_bytes, bool is_nested) {
             self.groups.push_back({false, is_nested, {value_bytes}, {}, {}, {}});
           }, "value_bytes"_a, "is_nested"_a,
           "Add a ragged field that lies alone: arrays of offsets, of inner offsets where it is nested, of values.");

  nb::class_<BoundWindow>(module, "WindowChunks", "The chunks of a window, and where the rows of its tables lie.")
      .def("__init__", [](BoundWindow* self, std::vector<ChunkMap> chunks, const Array<const int64_t, 3>& places,
                          const std::vector<Table>& tables) {
             static_assert(sizeof(ArrayPlace) == 2 * sizeof(int64_t));
             if (places.shape(2) != 2 || places.shape(0) != chunks.size())
               throw std::invalid_argument("places must have the shape [K, A, 2]");
             const std::span all(reinterpret_cast<const ArrayPlace*>(places.data()), places.size() / 2);
             new (self) BoundWindow{std::make_shared<const Window>(std::move(chunks), all, tables)};
           },
           "chunks"_a, "places"_a, "tables"_a,
           "Of K chunks: first byte and bytes of each array in its file, in the order of the tables. [K, A, 2].\n"
           "ValueError where an array does not lie there, or has another number of rows than its table.")
      .def_prop_ro("num_slots", [](const BoundWindow& self) { return self.get()->chunks.size(); }, "K.")
      .def_prop_ro("num_mapped", [](const BoundWindow& self) {
             return std::ranges::count_if(self.get()->chunks, &ChunkMap::is_mapped);
           }, "How many of the chunks are mapped; the others were read.")
      .def("is_in_memory", [](const BoundWindow& self) { return are_in_memory(self.get()->chunks); },
           "Return whether its pages lie in memory, as far as a look at a few of them tells.")
      .def("enter", [](const BoundWindow& self, size_t most_bytes) {
             const std::shared_ptr<const Window> window = self.get();
             nb::gil_scoped_release without_lock;
             return enter(window->chunks, most_bytes);
           },
           "most_bytes"_a, "Enter pages of chunks that nobody has entered, and return whether all are now.")
      .def("records", [](const BoundWindow& self, size_t slot) {
             const Table& table = self.get()->tables.at(0);
             return view_of(table.records.at(slot), table.num_rows.at(slot) * table.record_bytes);
           },
           "slot"_a, nb::sig("def records(self, slot: int) -> memoryview"),
           "Return the records of the samples of a chunk, as long as the window is open.")
      .def("close", &BoundWindow::close,
           "Let go of the chunks; whoever gathers from them has them still. Harmless when called again.");

  module.def("cached_bytes", &cached_bytes, "fd"_a, "num_bytes"_a,
             "Return how many bytes of a file lie in the page cache; all, where the system does not tell.");
  module.def("bring_in", &bring_in, "fd"_a, "offset"_a, "num_bytes"_a, WithoutLock{},
             "Read a part of a file into the page cache by huge pages, where the system has such; else do nothing.");
}

}  // namespace stoker
