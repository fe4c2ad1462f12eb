#include <nanobind/stl/vector.h>

#include <memory>

#include "../order.h"
#include "../packing.h"
#include "bindings.h"
#include "window.h"

namespace stoker {
namespace {

using Numbers = std::span<const int64_t>;
using Bytes = std::span<uint8_t>;

// Rows of a batch with what says where they lie. Positions are looked up when the rows are first used: in that call.
class BoundRows : public Rows {
 public:
  BoundRows(const BoundRows&) = delete;
  BoundRows(nb::list given, nb::object order) {
    for (nb::handle one : given) {
      const nb::tuple part = nb::cast<nb::tuple>(one);
      const auto& window = windows_.emplace_back(nb::cast<const BoundWindow&>(part[0]).get());
      const Table& table = window->tables.at(nb::cast<size_t>(part[1]));
      if (part.size() == 5) {
        const size_t here = nb::cast<size_t>(part[4]);
        orders_.push_back(part[2]);
        // Not filled with zeros: for eight batches of 4,096 rows that would be half a megabyte to write in vain.
        positions_.push_back({&nb::cast<const WindowOrder&>(part[2]), nb::cast<int64_t>(part[3]), here,
                              std::make_unique_for_overwrite<int64_t[]>(2 * here)});
        const int64_t* found = positions_.back().found.get();
        parts_.push_back({&table, {found, here}, {found + here, here}});
      } else {
        parts_.push_back({&table, take(part[2]), take(part[3])});
      }
      num += parts_.back().row.size();
      if (parts_.back().slot.size() != parts_.back().row.size()) throw std::invalid_argument("a slot for each row");
    }
    parts = parts_;
    if (order.is_none()) return;
    places = take(order);
    if (places.size() != num) throw std::invalid_argument("a place for each row");
  }

  // Where records go, once it is sure that they have room there: memory is Python's, and nothing else proves it.
  RecordTarget target(const Matrix<uint8_t>& out, size_t at) const {
    for (const Part& part : parts_)
      if (at > out.shape(1) || part.table->record_bytes > out.shape(1) - at)
        throw std::invalid_argument("records are wider than their room");
    if (num > out.shape(0)) throw std::invalid_argument("there is no room for all records");
    return {out.data() + at, out.shape(1)};
  }

  FoundLists find(size_t group, const Matrix<int64_t>& offsets, RecordTarget target = {}, Bytes values = {}) {
    if (parts_.empty()) throw std::invalid_argument("there are no rows");
    const ListGroup& fields = parts_[0].table->groups.at(group);
    if (offsets.shape(0) != fields.value_bytes.size() || offsets.shape(1) != num + 1)
      throw std::invalid_argument("offsets must have the shape [fields, rows + 1]");
    FoundLists found(fields, num, offsets.data());
    nb::gil_scoped_release without_lock;
    look_up();
    find_lists(*this, group, found, target);
    if (fields.is_nested) return found;
    found.lay_out();
    if (!values.empty() && found.num_bytes <= values.size()) found.copy(values.data());
    return found;
  }

  void take(RecordTarget target) {
    nb::gil_scoped_release without_lock;
    look_up();
    take_records(*this, target);
  }

  void read_runs(size_t offset, std::span<int64_t> runs, RecordTarget target = {}) {
    if (runs.size() < num) throw std::invalid_argument("there is no room for all runs");
    for (const Part& part : parts_)
      if (offset > part.table->record_bytes || part.table->record_bytes - offset < sizeof(uint32_t))
        throw std::invalid_argument("a run is no number of a record");
    nb::gil_scoped_release without_lock;
    look_up();
    stoker::read_runs(*this, offset, runs.data(), target);
  }

 private:
  struct Positions {
    const WindowOrder* order;
    int64_t first;
    size_t num;
    std::unique_ptr<int64_t[]> found;  // slots, then rows
  };

  void look_up() {
    if (std::exchange(is_looked_up_, true)) return;
    for (const auto& [order, first, here, found] : positions_)
      order->locate_range(first, {found.get(), here}, {found.get() + here, here});
  }
  Numbers take(nb::handle array) {
    if (!arrays_.emplace_back().take(array.ptr())) throw nb::type_error("places must be contiguous arrays of int64");
    return arrays_.back();
  }

  std::vector<std::shared_ptr<const Window>> windows_;
  std::vector<nb::object> orders_;
  std::vector<Positions> positions_;
  bool is_looked_up_ = false;
  std::vector<Array<const int64_t>> arrays_;
  std::vector<Part> parts_;
};

void bind_packing(nb::module_& module) {
  module.def("best_fit", &best_fit, "lengths"_a, "length"_a, "document"_a, "first"_a, "starts"_a, WithoutLock{},
             "Write document and first token of each piece, row by row, and each row's first piece; return how many rows.");
  module.def("fill_places", [](Numbers num, Numbers offsets, const Matrix<int32_t>& ids, const Matrix<int32_t>& positions) {
               if (ids.size() != positions.size() || ids.shape(0) + 1 != offsets.size())
                 throw std::invalid_argument("there must be room for these rows");
               fill_places({num, offsets, ids.shape(1)}, ids, positions);
             }, "num"_a, "offsets"_a, "ids"_a, "positions"_a, WithoutLock{},
             "Write each token's segment, counted from 1 in its packed row, and its place in that segment; 0 is padding.");
  module.def("pack_values", [](Numbers num, Numbers offsets, size_t length, const FoundLists& lists, size_t field, Numbers first,
                               Numbers num_values, std::span<const uint8_t> end, std::span<const uint8_t> pad, Bytes out) {
               if (field >= lists.num_fields || first.size() != lists.num_rows || num_values.size() != lists.num_rows)
                 throw std::invalid_argument("there must be a list of this field for each segment");
               const PackedRows rows{num, offsets, length};
               if (out.size() != rows.num_rows() * length * pad.size())
                 throw std::invalid_argument("there must be room for these rows");
               pack_values(rows, lists.sources.get() + field * lists.num_rows, first, num_values, end, pad, out);
             }, "num"_a, "offsets"_a, "length"_a, "lists"_a, "field"_a, "first"_a, "num_values"_a, "end"_a, "pad"_a, "out"_a,
             WithoutLock{},
             "Copy a field's values to their tokens, of each segment's list from value `first` on; then `end`s, then `pad`s.");
}

}  // namespace

void bind_gather(nb::module_& module) {
  nb::class_<BoundRows>(module, "Rows", "Rows of a batch, and where each goes.")
      .def(nb::init<nb::list, nb::object>(), "parts"_a, "places"_a.none() = nb::none(),
           nb::sig("def __init__(self, parts: list[tuple[WindowChunks, int, numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.int64]] | tuple[WindowChunks, int, WindowOrder, int, int]], "
                   "places: numpy.typing.NDArray[numpy.int64] | None = None) -> None"),
           "Of each window, and of one of its tables: slots and rows, int64 [b] each, or the window's order and consecutive\n"
           "positions, the first one and how many. Row k goes to `places[k]`, int64 [B], or one after the other.")
      .def("take", [](BoundRows& self, const Matrix<uint8_t>& out, size_t at) { self.take(self.target(out, at)); },
           "out"_a, "at"_a, "Copy records to byte `at` of the rows of `out`.")
      .def("take_with_lists", [](BoundRows& self, const Matrix<uint8_t>& out, size_t at, size_t group,
                                 const Matrix<int64_t>& offsets, Bytes values) {
             return self.find(group, offsets, self.target(out, at), values);
           }, "out"_a, "at"_a, "group"_a, "offsets"_a, "values"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 5>(),
           "Copy records as `take` does, and lists of a group, if `values` has `num_bytes`. Offsets: [F, B + 1].")
      .def("find", [](BoundRows& self, size_t group, const Matrix<int64_t>& offsets) { return self.find(group, offsets); },
           "group"_a, "offsets"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 3>(), "Find where the lists of a group lie.")
      .def("take_with_runs", [](BoundRows& self, const Matrix<uint8_t>& out, size_t offset, std::span<int64_t> runs) {
             self.read_runs(offset, runs, self.target(out, 0));
           }, "out"_a, "offset"_a, "runs"_a, "Copy records, and read what they share; see `runs`.")
      .def("runs", [](BoundRows& self, size_t offset, std::span<int64_t> runs) { self.read_runs(offset, runs); },
           "offset"_a, "runs"_a, "Read the uint32 at byte `offset` of each record. Shape [B], in the order of the parts.");

  nb::class_<FoundLists>(module, "FoundLists", "Where the lists of a batch lie.")
      .def_ro("begins", &FoundLists::begins, "First byte of each field's values; -1 where it was not chosen.")
      .def_ro("num_bytes", &FoundLists::num_bytes, "Room that the values need.")
      .def("choose", [](FoundLists& self, const std::vector<int64_t>& fields) { self.lay_out(fields); }, "fields"_a,
           "Have the values of some fields copied alone.")
      .def("descend", [](FoundLists& self, std::span<int64_t> offsets) {
             if (static_cast<int64_t>(offsets.size()) <= self.offsets[self.num_rows])
               throw std::invalid_argument("there is no room for the offsets of all inner lists");
             self.descend(offsets.data());
             self.lay_out();
           }, "offsets"_a, WithoutLock{},
           "Of lists of lists: write the offsets of all inner ones, whose number the last of the outer offsets is.")
      .def("copy", [](const FoundLists& self, Bytes out) {
             if (out.size() < self.num_bytes) throw std::invalid_argument("there is no room for all lists");
             self.copy(out.data());
           }, "out"_a, WithoutLock{}, "Copy all values.");

  module.def("distinct", &distinct, "slot"_a, "row"_a, "sizes"_a, "found_slot"_a, "found_row"_a, "number"_a, "counts"_a,
             WithoutLock{}, "Find the different rows of each batch in the order in which they come first; see gather.h.");
  module.def("expand", &expand, "slot"_a, "first"_a, "offsets"_a, "found_slot"_a, "found_row"_a,
             "Write slot and row of each of the consecutive rows that units [B] are made of.");
  bind_packing(module);
}

}  // namespace stoker
