#include <stdexcept>

#include "gather.h"

namespace stoker {
namespace {

// Goes through the arrays of a window's chunks in their order.
class Arrays {
 public:
  Arrays(const Window& window, std::span<const ArrayPlace> places, size_t num_arrays)
      : chunks_(window.chunks), places_(places), num_arrays_(num_arrays) {}

  // Where the next array of each chunk begins, once it is sure that it lies there.
  std::vector<const uint8_t*> next() {
    std::vector<const uint8_t*> begins(chunks_.size());
    for (size_t k = 0; k < begins.size(); ++k) {
      const ArrayPlace place = places_[k * num_arrays_ + next_];
      const int64_t size = static_cast<int64_t>(chunks_[k].num_bytes());
      if (place.offset < 0 || place.num_bytes < 0 || place.offset > size || place.num_bytes > size - place.offset) {
        throw std::invalid_argument("an array of a chunk does not lie in its file");
      }
      begins[k] = chunks_[k].data() + place.offset;
    }
    ++next_;
    return begins;
  }

  // The same of an array that has so many bytes a row, and some more at the end: which says how many rows there are.
  std::vector<const uint8_t*> next(Table& table, size_t row_bytes, size_t more_bytes = 0) {
    const bool is_first = table.num_rows.empty();
    table.num_rows.resize(chunks_.size());
    for (size_t k = 0; k < chunks_.size(); ++k) {
      const size_t num_bytes = static_cast<size_t>(places_[k * num_arrays_ + next_].num_bytes);
      const size_t num_rows = num_bytes < more_bytes ? 0 : (num_bytes - more_bytes) / row_bytes;
      if (num_rows * row_bytes + more_bytes != num_bytes || (!is_first && num_rows != table.num_rows[k])) {
        throw std::invalid_argument("an array of a chunk has another number of rows than its table");
      }
      table.num_rows[k] = num_rows;
    }
    return next();
  }

 private:
  const std::vector<ChunkMap>& chunks_;
  std::span<const ArrayPlace> places_;
  size_t num_arrays_, next_ = 0;
};

}  // namespace

size_t TableLayout::num_arrays() const {
  size_t num = record_bytes ? 1 : 0;
  for (const Lists& one : lists) num += one.is_nested ? 3 : 2;
  return num;
}

Window::Window(std::vector<ChunkMap> given, std::span<const ArrayPlace> places, std::span<const TableLayout> layouts)
    : chunks(std::move(given)) {
  size_t num_arrays = 0;
  for (const TableLayout& layout : layouts) num_arrays += layout.num_arrays();
  if (places.size() != chunks.size() * num_arrays) throw std::invalid_argument("there must be a place for each array");
  Arrays arrays(*this, places, num_arrays);
  for (const TableLayout& layout : layouts) {
    Table& table = tables.emplace_back();
    table.record_bytes = layout.record_bytes;
    if (layout.record_bytes) table.records = arrays.next(table, layout.record_bytes);
    for (const TableLayout::Lists& lists : layout.lists) {
      ListGroup& group = table.groups.emplace_back(ListGroup{lists.is_strip, lists.value_bytes, {}, {}, {}});
      group.places = lists.is_strip ? arrays.next(table, 4 * (1 + lists.value_bytes.size())) : arrays.next(table, 8, 8);
      if (lists.is_nested) group.inner = arrays.next();
      group.values = arrays.next();
    }
  }
}

}  // namespace stoker
