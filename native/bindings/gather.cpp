#include <nanobind/stl/vector.h>

#include <list>
#include <memory>

#include "../packing.h"
#include "bindings.h"
#include "window.h"

namespace stoker {
namespace {

// Rows of a batch with what says where they lie. Positions are looked up when the rows are first used: in that call.
class BoundRows : public Rows {
 public:
  BoundRows(const BoundRows&) = delete;
  BoundRows(nb::list given, nb::object order) {
    for (nb::handle one : given) {
      const nb::tuple part = nb::cast<nb::tuple>(one);
      windows_.push_back(nb::cast<const BoundWindow&>(part[0]).get());
      const Table& table = windows_.back()->tables.at(nb::cast<size_t>(part[1]));
      if (part.size() == 5) {
        const size_t here = nb::cast<size_t>(part[4]);
        orders_.push_back(part[2]);
        // Not filled with zeros: for eight batches of 4,096 rows that would be half a megabyte to write in vain.
        positions_.push_back({&nb::cast<const BoundWindowOrder&>(part[2]), nb::cast<int64_t>(part[3]), here,
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
    if (!order.is_none()) {
      places = take(order);
      if (places.size() != num) throw std::invalid_argument("a place for each row");
    }
  }

  void take_into(const Matrix<uint8_t>& out, size_t at) {
    nb::gil_scoped_release without_lock;
    look_up();
    take_records(*this, target(out, at));
  }

  // Lists of a group; their values are copied at once where there is room for them.
  BoundLists find(size_t group, Matrix<int64_t> offsets) {
    BoundLists found(group_of(group), num, std::move(offsets));
    nb::gil_scoped_release without_lock;
    look_up();
    find_lists(*this, group, found);
    if (!group_of(group).is_nested()) found.num_bytes = found.lay_out();
    return found;
  }

  BoundLists take_with_lists(const Matrix<uint8_t>& out, size_t at, size_t group, Matrix<int64_t> offsets,
                             const Array<uint8_t>& values) {
    BoundLists found(group_of(group), num, std::move(offsets));
    nb::gil_scoped_release without_lock;
    look_up();
    take_records_and_find_lists(*this, target(out, at), group, found);
    found.num_bytes = found.lay_out();
    if (found.num_bytes <= values.size()) found.copy(values.data());
    return found;
  }

  void take_with_runs(const Matrix<uint8_t>& out, size_t offset, const Array<int64_t>& runs) {
    nb::gil_scoped_release without_lock;
    look_up();
    take_records_and_runs(parts_.at(0), target(out, 0), {offset, room_for_runs(runs)});
  }

  void runs_into(size_t offset, const Array<int64_t>& runs) {
    nb::gil_scoped_release without_lock;
    look_up();
    int64_t* out = room_for_runs(runs);
    for (const Part& part : parts) {
      read_runs(part, {offset, out});
      out += part.row.size();
    }
  }

 private:
  struct Positions {
    const WindowOrder* order;
    int64_t first;
    size_t num;
    std::unique_ptr<int64_t[]> found;  // slots, then rows
  };

  void look_up() {
    for (Positions& one : positions_) {
      one.order->locate_range(one.first, {one.found.get(), one.num}, {one.found.get() + one.num, one.num});
    }
    positions_found_.splice(positions_found_.end(), positions_);
  }
  std::span<const int64_t> take(nb::handle array) {
    arrays_.emplace_back();
    if (!arrays_.back().take(array.ptr())) throw nb::type_error("places must be contiguous arrays of int64");
    return arrays_.back();
  }
  const ListGroup& group_of(size_t group) const {
    if (parts_.empty()) throw std::invalid_argument("there are no rows");
    return parts_[0].table->groups.at(group);
  }
  int64_t* room_for_runs(const Array<int64_t>& runs) const {
    if (runs.size() < num) throw std::invalid_argument("there is no room for all runs");
    return runs.data();
  }
  // Where records go, once it is sure that they have room there: memory is Python's, and nothing else proves it.
  RecordTarget target(const Matrix<uint8_t>& out, size_t at) const {
    for (const Part& part : parts_) {
      if (at + part.table->record_bytes > out.shape(1)) throw std::invalid_argument("records are wider than their room");
    }
    if (num > out.shape(0)) throw std::invalid_argument("there is no room for all records");
    return {out.data() + at, out.shape(1)};
  }

  std::vector<std::shared_ptr<const Window>> windows_;
  std::vector<nb::object> orders_;
  std::list<Positions> positions_, positions_found_;
  std::vector<Array<const int64_t>> arrays_;
  std::vector<Part> parts_;
};

void bind_packing(nb::module_& module) {
  using Input = Array<const int64_t>;
  module.def(
      "best_fit",
      [](const Input& lengths, int64_t length, const Array<int64_t>& document, const Array<int64_t>& first,
         const Array<int64_t>& starts) { return best_fit(lengths, length, document, first, starts); },
      nb::arg("lengths"), nb::arg("length"), nb::arg("document"), nb::arg("first"), nb::arg("starts"), WithoutLock{},
      "Write document and first token of each piece, row by row, and each row's first piece; return how many rows.");
  module.def(
      "fill_places",
      [](const Input& num, const Input& offsets, const Matrix<int32_t>& ids, const Matrix<int32_t>& positions) {
        fill_places({num, offsets, ids.shape(1)}, ids, positions);
      },
      nb::arg("num"), nb::arg("offsets"), nb::arg("ids"), nb::arg("positions"), WithoutLock{},
      "Write each token's segment, counted from 1 in its packed row, and its place in that segment; 0 is padding.");
  module.def(
      "pack_values",
      [](const Input& num, const Input& offsets, size_t length, const BoundLists& lists, size_t field,
         const Input& first, const Input& num_values, const Array<const uint8_t>& end, const Array<const uint8_t>& pad,
         const Array<uint8_t>& out) {
        if (field >= lists.num_fields || first.size() != lists.num_rows || num_values.size() != lists.num_rows)
          throw std::invalid_argument("there must be a list of this field for each segment");
        pack_values({num, offsets, length}, {lists.sources.get() + field * lists.num_rows, first, num_values}, end, pad, out);
      },
      nb::arg("num"), nb::arg("offsets"), nb::arg("length"), nb::arg("lists"), nb::arg("field"), nb::arg("first"),
      nb::arg("num_values"), nb::arg("end"), nb::arg("pad"), nb::arg("out"), WithoutLock{},
      "Copy a field's values to their tokens, of each segment's list from value `first` on; then `end`s, then `pad`s.");
}

}  // namespace

void bind_gather(nb::module_& module) {
  nb::class_<BoundRows>(module, "Rows", "Rows of a batch, and where each goes.")
      .def(nb::init<nb::list, nb::object>(), nb::arg("parts"), nb::arg("places").none() = nb::none(),
           nb::sig("def __init__(self, parts: list[tuple[WindowChunks, int, numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.int64]] | tuple[WindowChunks, int, WindowOrder, int, int]], "
                   "places: numpy.typing.NDArray[numpy.int64] | None = None) -> None"),
           "Of each window, and of one of its tables: slots and rows, int64 [b] each, or the window's order and consecutive\n"
           "positions, the first one and how many. Row k goes to `places[k]`, int64 [B], or one after the other.")
      .def("take", &BoundRows::take_into, nb::arg("out"), nb::arg("at"), "Copy records to byte `at` of the rows of `out`.")
      .def("take_with_lists", &BoundRows::take_with_lists, nb::arg("out"), nb::arg("at"), nb::arg("group"),
           nb::arg("offsets"), nb::arg("values"), nb::keep_alive<0, 1>(),
           "Copy records as `take` does, and lists of a group, if `values` has `num_bytes`. Offsets: [F, B + 1].")
      .def("find", &BoundRows::find, nb::arg("group"), nb::arg("offsets"), nb::keep_alive<0, 1>(),
           "Find where the lists of a group lie.")
      .def("take_with_runs", &BoundRows::take_with_runs, nb::arg("out"), nb::arg("offset"), nb::arg("runs"),
           "Copy the records of one part, and read what they share; see `runs`.")
      .def("runs", &BoundRows::runs_into, nb::arg("offset"), nb::arg("runs"),
           "Read the uint32 at byte `offset` of each record. Shape [B], in the order of the parts.");

  nb::class_<BoundLists>(module, "FoundLists", "Where the lists of a batch lie.")
      .def_ro("begins", &BoundLists::begins, "First byte of each field's values; -1 where it was not chosen.")
      .def_ro("num_bytes", &BoundLists::num_bytes, "Room that the values need.")
      .def("choose", &BoundLists::lay_out_fields, nb::arg("fields"), "Have the values of some fields copied alone.")
      .def("descend", &BoundLists::descend_into, nb::arg("offsets"),
           "Of lists of lists: write the offsets of all inner ones, whose number the last of the outer offsets is.")
      .def("copy", &BoundLists::copy_into, nb::arg("out"), "Copy all values.");

  module.def(
      "distinct",
      [](const Array<const int64_t>& slot, const Array<const int64_t>& row, const Array<const int64_t>& sizes,
         const Array<int64_t>& found_slot, const Array<int64_t>& found_row, const Array<int32_t>& number,
         const Array<int64_t>& counts) {
        nb::gil_scoped_release without_lock;
        return distinct(slot, row, sizes, found_slot.data(), found_row.data(), number.data(), counts.data());
      },
      nb::arg("slot"), nb::arg("row"), nb::arg("sizes"), nb::arg("found_slot"), nb::arg("found_row"), nb::arg("number"),
      nb::arg("counts"), "Find the different rows of each batch in the order in which they come first; see gather.h.");

  module.def(
      "expand",
      [](const Array<const int64_t>& slot, const Array<const int64_t>& first, const Array<const int64_t>& offsets,
         const Array<int64_t>& found_slot, const Array<int64_t>& found_row) {
        expand(slot, first, offsets, found_slot.data(), found_row.data());
      },
      nb::arg("slot"), nb::arg("first"), nb::arg("offsets"), nb::arg("found_slot"), nb::arg("found_row"),
      "Write slot and row of each of the consecutive rows that units [B] are made of.");
  bind_packing(module);
}

}  // namespace stoker
