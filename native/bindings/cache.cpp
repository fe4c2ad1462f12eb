#include <nanobind/stl/vector.h>

#include <chrono>
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

// A packer, with the arrays that it packs.
template <typename Packer>
struct Holding : Packer {
  using Packer::Packer;

  std::vector<Memory> arrays;
};
using HoldingRecordPacker = Holding<RecordPacker>;
using HoldingListPacker = Holding<ListPacker>;

void add_arrays(HoldingRecordPacker& packer, const nb::typed<nb::sequence, nb::object>& given) {
  std::vector<Column> columns;
  size_t num_rows = 0;
  for (nb::handle column : given) {
    const Memory& memory = packer.arrays.emplace_back(column);
    if (columns.size() && memory.num_rows() != num_rows) throw std::invalid_argument("columns must be of one length");
    num_rows = memory.num_rows();
    if (!num_rows) return;
    columns.push_back({memory.bytes(), memory.num_bytes() / num_rows, memory.is_signed()});
  }
  packer.add_piece(num_rows, std::move(columns));
}

void add_batch(HoldingRecordPacker& packer, const ExportedBatch& batch, std::span<const int64_t> numbers, size_t row_bytes,
               bool is_signed) {
  std::vector<Column> columns;
  for (const int64_t i : numbers) columns.push_back({batch.numbers(static_cast<size_t>(i), row_bytes), row_bytes, is_signed});
  packer.add_piece(batch.num_rows(), std::move(columns));
}

void add_lists(HoldingListPacker& packer, Array<const int64_t>& offsets, size_t value_bytes,
               const nb::typed<nb::sequence, nb::object>& pieces) {
  packer.add_field(offsets, value_bytes);
  packer.arrays.push_back(std::move(offsets));
  for (nb::handle piece : pieces) {
    const Memory& memory = packer.arrays.emplace_back(piece);
    packer.add_piece({memory.bytes(), memory.num_bytes()});
  }
}

void find_changed(const Matrix<const uint8_t>& names, const Matrix<const int64_t>& versions,
                  std::span<const int64_t> files, std::span<bool> changed, int64_t patience_ns) {
  static_assert(sizeof(FileVersion) == 3 * sizeof(int64_t));
  if (versions.shape(1) != 3 || versions.shape(0) != names.shape(0) || files.size() != changed.size())
    throw std::invalid_argument("there must be a name and three numbers a file");
  for (const int64_t file : files)
    if (file < 0 || static_cast<size_t>(file) >= names.shape(0)) throw std::invalid_argument("there is no such file");
  const auto* known = reinterpret_cast<const FileVersion*>(versions.data());
  const auto look = [&](size_t i) {
    const size_t file = static_cast<size_t>(files[i]);
    changed[i] = has_changed(reinterpret_cast<const char*>(names.data()) + file * names.shape(1), known[file]);
  };
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(patience_ns);
  size_t i = 0;
  while (i < files.size() && Clock::now() < end) look(i++);
  without_lock(i < files.size(), [&] {
    while (i < files.size()) look(i++);
  });
}

}  // namespace

void bind_cache(nb::module_& module) {
  module.def("hash_strings", [](std::span<const uint8_t> data, std::span<const int64_t> offsets, uint64_t num_buckets,
                                std::span<int64_t> out) {
               if (offsets.size() != out.size() + 1 || !num_buckets)
                 throw std::invalid_argument("there must be an offset more than strings, and a bucket at least");
               if (!without_lock(data.size() >= kFewBytes, [&] { return hash_strings(data, offsets, num_buckets, out); }))
                 throw std::out_of_range("a string lies outside of its data");
             }, "data"_a, "offsets"_a, "num_buckets"_a, "out"_a,
             "Write the bucket of each string: its XXH3 modulo `num_buckets`.");
  nb::class_<ExportedBatch>(module, "ExportedBatch", "A batch that Arrow exported by the C data interface.")
      .def(nb::init<nb::capsule>(), "array"_a)
      .def("with_nulls", [](const ExportedBatch& self, std::span<const int64_t> columns) {
             std::vector<size_t> found;  // places among the columns that were asked for
             for (size_t i = 0; i < columns.size(); ++i)
               if (self.column(static_cast<size_t>(columns[i])).null_count) found.push_back(i);
             return found;
           }, "columns"_a, "Return which of some columns, by their numbers [C], may have nulls: their places in `columns`.");
  nb::class_<HoldingRecordPacker>(module, "RecordPacker",
                                  "Packs the fixed-width fields of samples into records, from wherever they lie.")
      .def(nb::init<size_t>(), "record_bytes"_a)
      .def("add_field", &HoldingRecordPacker::add_field, "offset"_a, "item_bytes"_a,
           "Begin a field: where it lies in the record, and the bytes of one number of it.")
      .def("add_arrays", &add_arrays, "columns"_a,
           "Add the next rows of the field: contiguous arrays [n, ...], which lie side by side in the record.")
      .def("add_batch", &add_batch, "batch"_a, "columns"_a, "row_bytes"_a, "is_signed"_a, nb::keep_alive<1, 2>(),
           "Add the next rows of the field: some columns of a batch, by their numbers. Shape [C].")
      .def("pack", [](const HoldingRecordPacker& self, std::span<uint8_t> block, size_t start, size_t stop) {
             self.pack(std::as_writable_bytes(block), start, stop);
           }, "block"_a, "start"_a, "stop"_a, WithoutLock{},
           "Lay the records of rows [start, stop) at the beginning of a block of bytes.");
  nb::class_<HoldingListPacker>(module, "ListPacker", "Packs the lists of samples, of several fields, side by side.")
      .def(nb::init<>())
      .def("add_field", &add_lists, "offsets"_a, "value_bytes"_a, "pieces"_a,
           "Add a field: offsets [N + 1], and its values in contiguous arrays, which end between lists.")
      .def("pack", [](const HoldingListPacker& self, std::span<uint8_t> block, const Matrix<const uint32_t>& places,
                      size_t start, size_t stop) {
             self.pack(std::as_writable_bytes(block), places, start, stop);
           }, "block"_a, "places"_a, "start"_a, "stop"_a, WithoutLock{},
           "Lay the lists of rows [start, stop) at the beginning of a block of bytes; places has, for each row, where\n"
           "they begin, in units of 8 bytes, and how many values of each field there are. Shape [N, 1 + F].");
  module.def("mark_changes", &mark_changes, "data"_a, "starts"_a, "changes"_a, WithoutLock{},
             "Mark the rows [N] whose bytes, data[starts[i]:starts[i + 1]], differ from those of the row before.");
  module.def("find_changed", &find_changed, "names"_a, "versions"_a, "files"_a, "changed"_a, "patience_ns"_a,
             "Note which of some files [K] are not what they were: names [N, bytes], inode, mtime and size [N, 3].\n"
             "Keeps the interpreter's lock for `patience_ns` at most, but for one file.");
  module.def("widen_float16", [](std::span<const uint16_t> halves, std::span<float> singles) {
               if (singles.size() != halves.size()) throw std::invalid_argument("there must be as many of both");
               without_lock(halves.size() > kFewFloats, [&] { widen_float16(halves, singles); });
             }, "halves"_a, "singles"_a, "Write each float16, given by its bits, as a float32. Shapes [N].");
}

}  // namespace stoker
