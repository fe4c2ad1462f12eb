// Column chunks of every kind of column, by pages one at a time and by all that lie one behind the other.
#include "parquet/decode.h"

#include <algorithm>

#include "input.h"

namespace {

using stoker::parquet::Codec;
using stoker::parquet::Column;

constexpr int64_t kMost = 1 << 16;  // callers compare what pages promise with what the footer does

Column choose_column(fuzz::Input& input) {
  constexpr int64_t widths[] = {1, 2, 4, 8, 3, 12, 16, 100};
  Column column{widths[input.below(8)], 0, -1, false, false, false};
  const unsigned kind = input.below(4);
  column.is_list = kind == 3;
  column.full = static_cast<int>(column.is_list ? 1 + input.below(3) : input.below(2));
  column.empty = static_cast<int>(input.below(4)) - 1;
  column.is_bit = kind == 1;
  column.is_binary = kind == 2;
  if (column.is_bit) column.width = 1;
  if (column.is_binary) column.width = 4;
  return column;
}

struct Room {
  std::vector<uint8_t> bytes, values, valid;
  std::vector<int64_t> offsets;

  stoker::parquet::Target target() { return {bytes, values, valid, offsets}; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const Column column = choose_column(input);
  constexpr Codec codecs[] = {Codec::kUncompressed, Codec::kSnappy, Codec::kZstd, Codec::kLz4Raw};
  const Codec codec = codecs[input.below(4)];
  const int64_t num_rows = input.below(256);
  const std::vector<uint8_t> content = input.rest();

  std::vector<stoker::parquet::Page> pages;
  stoker::parquet::scan_pages(content, pages);
  const stoker::parquet::PageTotals totals = stoker::parquet::totals_of(pages);
  if (totals.plain_bytes > kMost || totals.num_entries > kMost || totals.num_dictionary_values > kMost) return 0;

  const auto make_room = [&] {
    const size_t num = static_cast<size_t>(totals.num_entries * column.width);
    const size_t num_dictionary_values = static_cast<size_t>(column.is_binary ? totals.plain_bytes : totals.num_dictionary_values * column.width);
    return Room{std::vector<uint8_t>(num_dictionary_values), std::vector<uint8_t>(num),
                std::vector<uint8_t>(column.has_nulls() ? static_cast<size_t>(num_rows) : 0),
                std::vector<int64_t>(column.is_list ? static_cast<size_t>(num_rows) + 1 : 0)};
  };
  Room together = make_room(), single = make_room();
  stoker::parquet::Progress progress, step;
  const bool is_done = stoker::parquet::decode_pages(pages, content, codec, column, together.target(), progress);
  bool is_done_singly = true;
  for (const stoker::parquet::Page& page : pages) {
    is_done_singly = stoker::parquet::decode_pages({&page, 1}, content, codec, column, single.target(), step);
    if (!is_done_singly) break;
  }
  MUST(is_done == is_done_singly);
  if (is_done) MUST(progress.values == step.values && progress.rows == step.rows && together.values == single.values);

  const int64_t borders[] = {0, static_cast<int64_t>(content.size())}, num_values[] = {totals.num_entries};
  const int64_t most_bytes[] = {totals.most_bytes};
  stoker::parquet::ColumnChunks chunks(content, borders);
  if (!chunks.lay_out({column}, num_rows, num_values, most_bytes)) return 0;
  const auto [bytes, values, valid, offsets] = chunks.size();
  Room all{std::vector<uint8_t>(static_cast<size_t>(bytes)), std::vector<uint8_t>(static_cast<size_t>(values)),
           std::vector<uint8_t>(static_cast<size_t>(valid)), std::vector<int64_t>(static_cast<size_t>(offsets))};
  const auto outcome = chunks.decode(codec, all.target()).front();
  if (outcome.is_done && is_done)
    MUST(outcome.progress.values == progress.values &&
         std::equal(together.values.begin(), together.values.begin() + progress.values * column.width, all.values.begin()));
  return 0;
}
