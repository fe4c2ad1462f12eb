#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "../chunk_map.h"
#include "../hash.h"
#include "../pack.h"
#include "bindings.h"

namespace stoker {
namespace {

// To get the lock back from threads that make batches takes as long as to widen so many floats.
constexpr size_t kFewFloats = 8192;

// Columns of a batch of Arrow's, by the C data interface: where all of them lie, asked at once.
//
// Source: https://arrow.apache.org/docs/format/CDataInterface.html.
struct ArrowArray {
  int64_t length, null_count, offset, num_buffers, num_children;
  const void** buffers;
  ArrowArray** children;
};

// Holds the memory of a batch.
class ExportedBatch {
 public:
  explicit ExportedBatch(nb::capsule array)
      : array_(std::move(array)), batch_(static_cast<const ArrowArray*>(array_.data("arrow_array"))) {}

  size_t num_rows() const { return static_cast<size_t>(batch_->length); }
  size_t num_columns() const { return static_cast<size_t>(batch_->num_children); }
  const ArrowArray& column(size_t i) const {
    if (i >= num_columns()) throw std::out_of_range("the batch has no such column");
    return *batch_->children[i];
  }

  // Returns where the numbers of a column begin, of so many bytes each.
  const std::byte* numbers(size_t i, size_t item_bytes) const {
    if (column(i).num_buffers != 2 || column(i).length < batch_->length || batch_->offset)
      throw std::out_of_range("the batch has no such column of numbers");
    return static_cast<const std::byte*>(column(i).buffers[1]) + static_cast<size_t>(column(i).offset) * item_bytes;
  }

 private:
  nb::capsule array_;
  const ArrowArray* batch_;
};

// Of fewer bytes it takes longer to get the interpreter's lock back than to hash them.
constexpr size_t kFewBytes = 64 << 10;

// A packer of records, with the arrays that it packs.
struct HeldRecordPacker : RecordPacker {
  using RecordPacker::RecordPacker;
  HeldRecordPacker(const HeldRecordPacker&) = delete;

  void begin_field(size_t offset, size_t item_bytes) {
    add_field();
    field_offset = offset;
    field_item_bytes = item_bytes;
  }

  void add_arrays(const nb::typed<nb::sequence, nb::object>& columns) {
    std::vector<Column> added;
    size_t num_rows = 0, offset = field_offset;
    for (nb::handle column : columns) {
      const Memory& memory = held.emplace_back(column);
      if (added.size() && memory.num_rows() != num_rows) throw std::invalid_argument("columns must be of one length");
      num_rows = memory.num_rows();
      if (!num_rows) return;
      const size_t row_bytes = memory.num_bytes() / num_rows;
      added.push_back({memory.bytes(), row_bytes, offset, move_of(row_bytes, field_item_bytes, memory.is_signed())});
      offset += field_item_bytes;
    }
    add_piece(num_rows, added);
  }

  void add_batch(const ExportedBatch& batch, const Array<const int64_t>& columns, size_t row_bytes, bool is_signed) {
    std::vector<Column> added;
    size_t offset = field_offset;
    const Move move = move_of(row_bytes, field_item_bytes, is_signed);
    for (int64_t i : columns.span()) {
      added.push_back({batch.numbers(static_cast<size_t>(i), row_bytes), row_bytes, offset, move});
      offset += field_item_bytes;
    }
    add_piece(batch.num_rows(), added);
  }

  std::vector<Memory> held;
  size_t field_offset = 0, field_item_bytes = 1;
};

// A packer of lists, with the arrays that it packs.
struct HeldListPacker : ListPacker {
  HeldListPacker() = default;
  HeldListPacker(const HeldListPacker&) = delete;

  void add(Array<const int64_t>& field_offsets, size_t value_bytes, const nb::typed<nb::sequence, nb::object>& pieces) {
    add_field(offsets.emplace_back(std::move(field_offsets)), value_bytes);
    for (nb::handle piece : pieces) {
      const Memory& memory = held.emplace_back(piece);
      add_piece(memory.bytes(), memory.num_bytes() / value_bytes);
    }
  }

  std::vector<Array<const int64_t>> offsets;
  std::vector<Memory> held;
};

void find_changed(const Matrix<const uint8_t>& names, const Matrix<const int64_t>& versions,
                  const Array<const int64_t>& files, const Array<bool>& changed, int64_t patience_ns) {
  static_assert(sizeof(FileVersion) == 3 * sizeof(int64_t));
  if (versions.shape(1) != 3 || versions.shape(0) != names.shape(0) || files.size() != changed.size())
    throw std::invalid_argument("there must be a name and three numbers a file");
  for (int64_t file : files.span())
    if (file < 0 || static_cast<size_t>(file) >= names.shape(0)) throw std::invalid_argument("there is no such file");
  const KnownFiles known{reinterpret_cast<const char*>(names.data()), names.shape(1),
                         {reinterpret_cast<const FileVersion*>(versions.data()), versions.shape(0)}};
  const size_t num = find_changed_files(known, files, changed, patience_ns);
  if (num == files.size()) return;
  nb::gil_scoped_release without_lock;
  find_changed_files(known, files.span().subspan(num), changed.span().subspan(num), INT64_MAX);
}

}  // namespace

void bind_cache(nb::module_& module) {
  module.def("hash_strings", [](const Array<const uint8_t>& data, const Array<const int64_t>& offsets,
                                uint64_t num_buckets, const Array<int64_t>& out) {
               if (offsets.size() != out.size() + 1 || !num_buckets)
                 throw std::invalid_argument("there must be an offset more than strings, and a bucket at least");
               if (!without_lock(data.size() >= kFewBytes, [&] { return hash_strings(data, offsets, num_buckets, out); }))
                 throw std::out_of_range("a string lies outside of its data");
             }, "data"_a, "offsets"_a, "num_buckets"_a, "out"_a,
             "Write the bucket of each string: its XXH3 modulo `num_buckets`.");
  nb::class_<ExportedBatch>(module, "ExportedBatch", "A batch that Arrow exported by the C data interface.")
      .def(nb::init<nb::capsule>(), "array"_a)
      .def("with_nulls", [](const ExportedBatch& self, const Array<const int64_t>& columns) {
             std::vector<size_t> found;  // places among the columns that were asked for
             for (size_t i = 0; i < columns.size(); ++i)
               if (self.column(static_cast<size_t>(columns.data()[i])).null_count) found.push_back(i);
             return found;
           }, "columns"_a, "Return which of some columns, by their numbers [C], may have nulls: their places in `columns`.");
  nb::class_<HeldRecordPacker>(module, "RecordPacker",
                               "Packs the fixed-width fields of samples into records, from wherever they lie.")
      .def(nb::init<size_t>(), "record_bytes"_a)
      .def("add_field", &HeldRecordPacker::begin_field, "offset"_a, "item_bytes"_a,
           "Begin a field: where it lies in the record, and the bytes of one number of it.")
      .def("add_arrays", &HeldRecordPacker::add_arrays, "columns"_a,
           "Add the next rows of the field: contiguous arrays [n, ...], which lie side by side in the record.")
      .def("add_batch", &HeldRecordPacker::add_batch, "batch"_a, "columns"_a, "row_bytes"_a, "is_signed"_a,
           nb::keep_alive<1, 2>(), "Add the next rows of the field: some columns of a batch, by their numbers. Shape [C].")
      .def("pack", [](const HeldRecordPacker& self, const Array<uint8_t>& block, size_t start, size_t stop) {
             self.pack(std::as_writable_bytes(block.span()), start, stop);
           }, "block"_a, "start"_a, "stop"_a, WithoutLock{},
           "Lay the records of rows [start, stop) at the beginning of a block of bytes.");
  nb::class_<HeldListPacker>(module, "ListPacker", "Packs the lists of samples, of several fields, side by side.")
      .def(nb::init<>())
      .def("add_field", &HeldListPacker::add, "offsets"_a, "value_bytes"_a, "pieces"_a,
           "Add a field: offsets [N + 1], and its values in contiguous arrays, which end between lists.")
      .def("pack", [](const HeldListPacker& self, const Array<uint8_t>& block, const Matrix<const uint32_t>& places,
                      size_t start, size_t stop) {
             for (const auto& some : self.offsets)
               if (some.size() <= stop) throw std::invalid_argument("there are not so many rows");
             if (places.shape(1) != 1 + self.offsets.size()) throw std::invalid_argument("places are of other fields");
             self.pack(std::as_writable_bytes(block.span()), places, start, stop);
           }, "block"_a, "places"_a, "start"_a, "stop"_a, WithoutLock{},
           "Lay the lists of rows [start, stop) at the beginning of a block of bytes; places has, for each row, where\n"
           "they begin, in units of 8 bytes, and how many values of each field there are. Shape [N, 1 + F].");
  module.def("mark_changes", [](const Array<const uint8_t>& data, const Array<const int64_t>& starts,
                                const Array<bool>& changes) { mark_changes(data, starts, changes); },
             "data"_a, "starts"_a, "changes"_a, WithoutLock{},
             "Mark the rows [N] whose bytes, data[starts[i]:starts[i + 1]], differ from those of the row before.");
  module.def("find_changed", &find_changed, "names"_a, "versions"_a, "files"_a, "changed"_a, "patience_ns"_a,
             "Note which of some files [K] are not what they were: names [N, bytes], inode, mtime and size [N, 3].\n"
             "Keeps the interpreter's lock for `patience_ns` at most, but for one file.");
  module.def("widen_float16", [](const Array<const uint16_t>& halves, const Array<float>& singles) {
               if (singles.size() != halves.size()) throw std::invalid_argument("there must be as many of both");
               without_lock(halves.size() > kFewFloats, [&] { widen_float16(halves, singles); });
             }, "halves"_a, "singles"_a, "Write each float16, given by its bits, as a float32. Shapes [N].");
}

}  // namespace stoker
