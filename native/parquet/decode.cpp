#include "decode.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "levels.h"
#include "values.h"

namespace stoker::parquet {
namespace {

// Behind a page that was decompressed there is room to read eight bytes at once.
constexpr int64_t kMargin = 8;

// Room for one page that a thread uses again, as fresh memory costs more than filling it: for the largest page that is
// usual, several times. A larger one lives as long as this does.
class Scratch {
 public:
  explicit Scratch(int64_t num_bytes) {
    constexpr int64_t kKept = 16 << 20, kLeast = 1 << 16;
    thread_local std::unique_ptr<uint8_t[]> kept;
    thread_local int64_t kept_bytes = 0;
    if (num_bytes > kKept) {
      own_ = make(num_bytes);
      data_ = own_.get();
      return;
    }
    if (kept_bytes < num_bytes) {
      kept_bytes = 0;
      kept = make(std::max(num_bytes, kLeast));
      kept_bytes = std::max(num_bytes, kLeast);
    }
    data_ = kept.get();
  }

  uint8_t* data() const { return data_; }

 private:
  static std::unique_ptr<uint8_t[]> make(int64_t num_bytes) {
    return std::unique_ptr<uint8_t[]>(new uint8_t[static_cast<size_t>(num_bytes)]);
  }

  std::unique_ptr<uint8_t[]> own_;
  uint8_t* data_;
};

// The content of a page: levels that stand before it, and the rest as it was before it was compressed.
struct Content {
  const uint8_t* levels;
  Body body;
};

bool open_page(const Page& page, std::span<const uint8_t> stored, Codec codec, const Scratch& scratch, Content& out) {
  const uint8_t *begin = stored.data(), *body = begin + page.level_bytes(), *end = begin + stored.size();
  out.levels = begin;
  if (!page.is_packed || codec == Codec::kUncompressed) {
    out.body = {body, end, end};
    return static_cast<int64_t>(stored.size()) == page.plain_bytes;
  }
  const size_t num_bytes = static_cast<size_t>(page.plain_bytes - page.level_bytes());
  out.body = {scratch.data(), scratch.data() + num_bytes, scratch.data() + num_bytes + kMargin};
  return decompress(codec, {body, end}, {scratch.data(), num_bytes});
}

// Takes levels that stand before values, behind their length in bytes.
bool take_levels(Body& body, Runs& runs) {
  if (body.size() < 4) return false;
  const uint32_t num_bytes = load<uint32_t>(body.at);
  body.at += 4;
  if (num_bytes > body.size()) return false;
  runs = Runs(body.at, body.at + num_bytes);
  body.at += num_bytes;
  return true;
}

// Lays `num` bits out, a byte each.
bool decode_bits(int64_t encoding, int64_t num, Body body, uint8_t* out) {
  Runs runs;
  if (encoding == kPlain) {
    if ((num + 7) / 8 > body.size()) return false;
    runs = Runs::of_packed(body.at, num);
  } else if (encoding != kRle || !take_levels(body, runs)) {
    return false;
  }
  return read_flat_levels(runs, num, out) >= 0;
}

bool decode_dictionary(const Page& page, Body body, const Column& column, const Target& target, Progress& progress) {
  if ((page.encoding != kPlain && page.encoding != kPlainDictionary) || progress.dictionary_values) return false;
  const int64_t num_bytes = page.num_entries * column.width;
  if (num_bytes > body.size() || num_bytes > static_cast<int64_t>(target.bytes.size())) return false;
  if (num_bytes) std::memcpy(target.bytes.data(), body.at, static_cast<size_t>(num_bytes));
  progress.dictionary_values = page.num_entries;
  return true;
}

// Lays the `num` values of a page that are there one behind the other, from `out` on, which has room for them.
bool decode_values(const Page& page, int64_t num, Body body, const Column& column, const Target& target,
                   Progress& progress, uint8_t* out) {
  const int64_t width = column.width;
  if (column.is_bit) return decode_bits(page.encoding, num, body, out);
  if (is_by_dictionary(page.encoding)) {
    if (num == 0) return true;
    if (body.size() < 1) return false;
    const int bits = *body.at;
    if (bits > 32) return false;
    const Runs indices(body.at + 1, body.end);
    if (column.is_binary) return read_indices(indices, num, bits, progress.dictionary_values, body.limit, out);
    const int64_t most = std::min(progress.dictionary_values, static_cast<int64_t>(target.bytes.size()) / width);
    return look_up(indices, num, bits, target.bytes.data(), most, width, body.limit, out);
  }
  if (page.encoding == kByteStreamSplit) {
    if (num * width != body.size()) return false;
    join_streams(body.at, num, width, out);
    return true;
  }
  if (page.encoding != kPlain) return false;
  if (column.is_binary) {
    const auto room = target.bytes.subspan(std::min(static_cast<size_t>(progress.string_bytes), target.bytes.size()));
    const int64_t num_bytes = split_byte_arrays(body, num, out, room);
    progress.string_bytes += std::max<int64_t>(0, num_bytes);
    return num_bytes >= 0;
  }
  if (num * width > body.size()) return false;
  if (num) std::memcpy(out, body.at, static_cast<size_t>(num * width));
  return true;
}

// Reads the levels of the next rows of a flat column; returns how many have a value, -1 where they are wrong.
int64_t decode_flat_levels(Runs runs, int64_t num, const Target& target, Progress& progress) {
  if (num > static_cast<int64_t>(target.valid.size()) - progress.rows) return -1;
  uint8_t *const all = target.valid.data(), *const valid = all + progress.rows;
  Runs once = runs;
  const int64_t num_there = read_flat_levels(once, num, progress.nulls ? valid : nullptr);
  if (num_there >= 0 && num_there < num && !progress.nulls) {
    std::memset(all, 1, static_cast<size_t>(progress.rows));
    read_flat_levels(runs, num, valid);
  }
  return num_there;
}

bool decode_page(const Page& page, std::span<const uint8_t> stored, Codec codec, const Scratch& scratch,
                 const Column& column, const Target& target, Progress& progress) {
  Content content;
  if (!open_page(page, stored, codec, scratch, content)) return false;
  Body& body = content.body;
  if (page.kind == kDictionary) return decode_dictionary(page, body, column, target, progress);
  Runs repetition, definition;
  if (page.kind == kDataV2) {
    const uint8_t* middle = content.levels + page.repetition_bytes;
    repetition = Runs(content.levels, middle);
    definition = Runs(middle, middle + page.definition_bytes);
  } else if (page.kind != kData || (column.is_list && !take_levels(body, repetition)) ||
             (column.full && !take_levels(body, definition))) {
    return false;
  }
  const int64_t num = page.num_entries, first_row = progress.rows, first = progress.values;
  int64_t num_there = num, num_slots = num;
  if (column.is_list) {
    int64_t end = first;
    if (!read_list_levels(repetition, definition, num, {column.full, column.empty}, target.offsets, progress.rows, end))
      return false;
    num_there = num_slots = end - first;
  } else {
    if (column.full) num_there = decode_flat_levels(definition, num, target, progress);
    if (num_there < 0) return false;
    progress.nulls += num - num_there;
    progress.rows += num;
  }
  if ((first + num_slots) * column.width > static_cast<int64_t>(target.values.size())) return false;
  uint8_t* out = target.values.data() + first * column.width;
  if (!decode_values(page, num_there, body, column, target, progress, out)) return false;
  if (num_there < num_slots) spread(out, num, num_there, target.valid.data() + first_row, column.width);
  progress.values = first + num_slots;
  return true;
}

int64_t aligned(int64_t num_bytes) {
  constexpr int64_t kAligned = 64;  // where Arrow wants values to begin
  return (num_bytes + kAligned - 1) / kAligned * kAligned;
}

template <typename T>
std::span<T> part_of(std::span<T> all, int64_t begin, int64_t end) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

Scratch scratch_for(const PageTotals& totals, Codec codec) {
  return Scratch(totals.is_packed && codec != Codec::kUncompressed ? totals.most_bytes + kMargin : 0);
}

std::span<const uint8_t> stored_of(const Page& page, std::span<const uint8_t> content) {
  return content.subspan(static_cast<size_t>(page.at), static_cast<size_t>(page.stored_bytes));
}

}  // namespace

bool decode_pages(std::span<const Page> pages, std::span<const uint8_t> content, Codec codec, const Column& column,
                  const Target& target, Progress& progress) {
  const Scratch scratch = scratch_for(totals_of(pages), codec);
  for (const Page& page : pages)
    if (!decode_page(page, stored_of(page, content), codec, scratch, column, target, progress)) return false;
  return true;
}

bool decode_plain_page(const Page& page, std::span<const uint8_t> content, const Column& column, const Target& target,
                       Progress& progress) {
  if (static_cast<int64_t>(content.size()) != page.plain_bytes) return false;
  return decode_page(page, content, Codec::kUncompressed, Scratch(0), column, target, progress);
}

int64_t split_page(const Page& page, std::span<const uint8_t> stored, Codec codec, std::span<int32_t> lengths,
                   std::span<uint8_t> bytes) {
  Content content;
  const Scratch scratch = scratch_for(totals_of({&page, 1}), codec);
  if (!open_page(page, stored, codec, scratch, content)) return -1;
  auto* out = reinterpret_cast<uint8_t*>(lengths.data());
  return split_byte_arrays(content.body, static_cast<int64_t>(lengths.size()), out, bytes);
}

ColumnChunks::ColumnChunks(std::span<const uint8_t> content, std::span<const int64_t> borders) : content_(content) {
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    if (borders[i] < 0 || borders[i] > borders[i + 1] || borders[i + 1] > static_cast<int64_t>(content.size()))
      throw std::invalid_argument("column chunks must lie one behind the other in the content");
    const size_t first = pages_.size();
    std::vector<Page> found;
    const auto here = part_of(content, borders[i], borders[i + 1]);
    const int64_t end = scan_pages(here, found);
    const PageTotals totals = totals_of(found);
    for (Page& page : found) page.at += borders[i];
    pages_.insert(pages_.end(), found.begin(), found.end());
    chunks_.push_back({first, pages_.size(), static_cast<int64_t>(here.size()), end, totals});
  }
}

bool ColumnChunks::lay_out(std::vector<Column> columns, int64_t num_rows, std::span<const int64_t> num_values,
                           std::span<const int64_t> most_bytes) {
  constexpr int64_t kMost = 1 << 24;  // sizes of all columns together stay numbers of 64 bits
  columns_ = std::move(columns);
  num_rows_ = num_rows;
  Part at{};
  parts_.assign(1, at);
  if (num_rows < 0 || num_rows >= kMost) return false;
  if (columns_.size() != chunks_.size() || num_values.size() != chunks_.size() || most_bytes.size() != chunks_.size())
    throw std::invalid_argument("there must be a column, and its numbers, for each column chunk");
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    const Column& column = columns_[i];
    const PageTotals& totals = chunk.totals;
    if (chunk.first_page == chunk.last_page || chunk.end != chunk.bytes || totals.has_checksums) return false;
    if (totals.num_entries != num_values[i] || totals.most_bytes > most_bytes[i]) return false;
    if (std::max({totals.num_entries, totals.num_dictionary_values, column.width}) >= kMost) return false;
    at.bytes += totals.num_dictionary_values * column.width;
    at.values += aligned(totals.num_entries * column.width);
    if (column.has_nulls()) at.valid += num_rows;
    if (column.is_list) at.offsets += num_rows + 1;
    parts_.push_back(at);
  }
  return true;
}

std::vector<ColumnChunks::Outcome> ColumnChunks::decode(Codec codec, const Target& target) const {
  const Part all = size();
  if (static_cast<int64_t>(target.bytes.size()) < all.bytes || static_cast<int64_t>(target.values.size()) < all.values ||
      static_cast<int64_t>(target.valid.size()) < all.valid ||
      static_cast<int64_t>(target.offsets.size()) < all.offsets || parts_.size() != chunks_.size() + 1)
    throw std::invalid_argument("the target must have room for all columns");
  std::vector<Outcome> outcomes;
  const std::span<const Page> pages(pages_);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const auto [first, last, bytes, end, totals] = chunks_[i];
    const Part &from = parts_[i], &to = parts_[i + 1];
    const Target here{part_of(target.bytes, from.bytes, to.bytes), part_of(target.values, from.values, to.values),
                      part_of(target.valid, from.valid, to.valid), part_of(target.offsets, from.offsets, to.offsets)};
    Outcome outcome{false, {}, from};
    outcome.is_done =
        decode_pages(pages.subspan(first, last - first), content_, codec, columns_[i], here, outcome.progress) &&
        outcome.progress.rows == num_rows_;
    outcomes.push_back(outcome);
  }
  return outcomes;
}

}  // namespace stoker::parquet
