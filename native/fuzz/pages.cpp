// Column chunks of every kind of column, as a whole and some rows at a time.
#include "parquet/decode.h"

#include <algorithm>

#include "input.h"

namespace {

using stoker::parquet::Codec;
using stoker::parquet::Column;

constexpr int64_t kMost = 1 << 16;  // callers compare what pages promise with what the footer does

// Takes a byte for each choice, used or not: seeds say all of them.
Column choose_column(fuzz::Input& input) {
  constexpr int64_t widths[] = {1, 2, 4, 8, 3, 12, 16, 100};
  const int64_t width = widths[input.below(8)];
  const unsigned kind = input.below(4), full = input.below(4), empty = input.below(4);
  const bool is_large = input.below(2) == 1;
  const int64_t narrowed = int64_t{1} << input.below(3), list_size = static_cast<int64_t>(input.below(8)) - 3;
  Column column{width, 0, static_cast<int>(empty) - 1, kind == 3, kind == 1, kind == 2, 0, is_large, -1};
  column.full = static_cast<int>(column.is_list ? 1 + full % 3 : full % 2);
  if (column.is_bit) column.width = 1;
  if (column.is_binary) column.width = 4;
  column.value_bytes = column.width == 4 && !column.is_binary ? narrowed : column.width;
  if (column.is_list && list_size > 0) column.list_size = list_size;
  return column;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const Column column = choose_column(input);
  constexpr Codec codecs[] = {Codec::kUncompressed, Codec::kSnappy, Codec::kZstd, Codec::kLz4Raw};
  const Codec codec = codecs[input.below(4)];
  const int64_t num_rows = input.below(256), at_once = 1 + input.below(64);
  const size_t split = input.below(256);
  const std::vector<uint8_t> content = input.rest();

  const stoker::parquet::Promise promise{num_rows, kMost, kMost, kMost};
  stoker::parquet::ColumnReader whole(column, codec, promise), parts(column, codec, promise);
  const int64_t end = whole.scan(content);
  MUST(end <= static_cast<int64_t>(content.size()));
  if (end < 0 || whole.num_entries() > kMost) return 0;
  const int64_t num_bytes = whole.plan(0, num_rows, 0);
  if (num_bytes < 0) return 0;
  std::vector<uint8_t> memory(static_cast<size_t>(num_bytes));
  const bool is_done = whole.decode(memory) && whole.rows().rows == num_rows;

  // Read in two pieces and decoded some rows at a time, a column is the same, or wrong in another place.
  const std::span all(content), first = all.first(std::min(split, content.size()));
  const int64_t middle = parts.scan(first);
  if (middle < 0) return 0;
  const std::vector<uint8_t> rest(content.begin() + middle, content.end());
  std::vector<std::vector<uint8_t>> memories;
  bool is_read = false;
  int64_t taken = 0, num_taken = 0;
  while (num_taken < num_rows) {
    const int64_t num = std::min(at_once, num_rows - num_taken);
    const bool is_last = num == num_rows - num_taken;
    const int64_t have = memories.empty() ? 0 : parts.rows().rows - taken;
    if (have < num || (is_last && (!is_read || parts.has_pages()))) {
      if (!is_read && !parts.has(taken, num)) {
        is_read = true;
        if (parts.scan(rest) < 0) return 0;
      }
      if (!parts.has_pages()) return 0;
      const int64_t part_bytes = parts.plan(taken, num, 0);
      if (part_bytes < 0) return 0;
      memories.emplace_back(static_cast<size_t>(part_bytes));
      if (!parts.decode(memories.back())) return 0;
      taken = 0;
      continue;
    }
    if (is_done && column.is_stored_alike() && !column.is_list && !column.is_binary)
      MUST(std::equal(memories.back().begin() + taken * column.width, memories.back().begin() + (taken + num) * column.width,
                      memory.begin() + num_taken * column.width));
    taken += num;
    num_taken += num;
  }
  return 0;
}
