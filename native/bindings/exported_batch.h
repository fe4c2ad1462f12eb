// Columns of a batch of Arrow's, by the C data interface: where all of them lie, asked at once.
//
// Source: https://arrow.apache.org/docs/format/CDataInterface.html.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>

namespace stoker {

struct ArrowArray {
  int64_t length, null_count, offset, num_buffers, num_children;
  const void** buffers;
  ArrowArray** children;
};

// Holds the memory of a batch.
class ExportedBatch {
 public:
  explicit ExportedBatch(nanobind::capsule array)
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
  nanobind::capsule array_;
  const ArrowArray* batch_;
};

}  // namespace stoker
