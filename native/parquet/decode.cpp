#include "decode.h"

#include <algorithm>
#include <utility>

namespace stoker::parquet {
namespace {

// Behind a page that was decompressed there is room to read eight bytes at once.
constexpr int64_t kMargin = 8;
// Strings are decompressed to where they go, so many bytes further on: without their lengths they then move there, and
// none is written over before it is read.
constexpr int64_t kAhead = 16;
constexpr int64_t kMostOffset = 0x7FFFFFFF;
// Of one column: sizes of all of them together stay numbers of 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 46;

// Returns room for one page, which a thread uses again: fresh memory costs more than filling it. What is larger than
// pages usually are is kept for one page.
uint8_t* scratch(int64_t num_bytes) {
  constexpr int64_t kKept = 16 << 20, kLeast = 1 << 16;
  thread_local std::unique_ptr<uint8_t[]> kept;
  thread_local int64_t kept_bytes = 0;
  if (kept_bytes < num_bytes || kept_bytes > kKept) {
    kept_bytes = 0;
    kept.reset();
    kept = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(std::max(num_bytes, kLeast)));
    kept_bytes = std::max(num_bytes, kLeast);
  }
  return kept.get();
}

// Finds what follows the levels that stand uncompressed at the beginning of a page, decompressed: into `room`, if any.
bool open_page(const Page& page, Codec codec, uint8_t* room, Body& body) {
  const uint8_t *begin = page.stored.data() + page.level_bytes(), *end = page.stored.data() + page.stored_bytes;
  if (!page.is_packed || codec == Codec::kUncompressed) {
    body = {begin, end, end};
    return page.stored_bytes == page.plain_bytes;
  }
  const int64_t num_bytes = page.plain_bytes - page.level_bytes();
  uint8_t* to = room ? room : scratch(num_bytes + kMargin);
  body = {to, to + num_bytes, to + num_bytes + (room ? 0 : kMargin)};
  return decompress(codec, {begin, end}, {to, static_cast<size_t>(num_bytes)});
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
bool read_bits(int64_t encoding, int64_t num, Body body, uint8_t* out) {
  Runs runs;
  if (encoding == kPlain) {
    if ((num + 7) / 8 > body.size()) return false;
    runs = Runs::of_packed(body.at, num);
  } else if (encoding != kRle || !take_levels(body, runs)) {
    return false;
  }
  return read_flat_levels(runs, num, out) >= 0;
}

int64_t aligned(int64_t num_bytes) {
  constexpr int64_t kAligned = 64;  // where Arrow wants values to begin
  return (num_bytes + kAligned - 1) / kAligned * kAligned;
}

template <typename T>
std::span<T> part_of(std::span<T> all, int64_t begin, int64_t num) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(num));
}

// Writes a bit for each byte.
STOKER_VERSIONS
void pack_bits(std::span<const uint8_t> flags, uint8_t* out) {
  for (size_t i = 0; i < flags.size(); i += 8) {
    unsigned byte = 0;
    for (size_t k = 0; k < std::min<size_t>(8, flags.size() - i); ++k) byte |= unsigned{flags[i + k]} << k;
    *out++ = static_cast<uint8_t>(byte);
  }
}

// Keeps the lower bytes of numbers of four.
template <typename T>
void narrow(std::span<const uint8_t> wide, uint8_t* out) {
  for (size_t i = 0; i < wide.size() / 4; ++i) store(out + i * sizeof(T), static_cast<T>(load<uint32_t>(&wide[i * 4])));
}

// Writes where each of so many things begins, by how long they are, and the end; false where that is beyond 32 bits.
template <typename Length>
bool write_offsets(int64_t num, bool is_large, uint8_t* out, Length length_of) {
  int64_t offset = 0;
  for (int64_t i = 0; i <= num; ++i) {
    if (is_large) store(out + i * 8, offset);
    else store(out + i * 4, static_cast<int32_t>(offset));
    if (i < num) offset += length_of(i);
  }
  return is_large || offset <= kMostOffset;
}

}  // namespace

int64_t ColumnReader::scan(std::span<const uint8_t> content) {
  const size_t num_before = pages_.size();
  const int64_t end = scan_pages(content, pages_);
  for (const Page& page : std::span(pages_).subspan(num_before)) {
    if (page.checksum >= 0 && crc32(page.stored) != static_cast<uint32_t>(page.checksum)) return -1;
    if (page.kind != kDictionary) {
      num_entries_ += page.num_entries;
      if (page.num_entries > promise_.most_page_values) return -1;
    }
    num_bytes_ = column_.is_binary ? num_bytes_ + page.plain_bytes : page.plain_bytes;
    if (num_bytes_ > promise_.most_bytes) return -1;
  }
  return end;
}

// Pages of values are counted by their entries: of lists they are as many as a row has on average, times the rows.
size_t ColumnReader::stop_for(int64_t first, int64_t num_rows) const {
  if (num_rows >= rows_left_ - first) return pages_.size();
  // A list is whole when the next one has begun.
  double needed = static_cast<double>(first + num_rows - num_rows_ + column_.is_list);
  if (column_.is_list) needed *= static_cast<double>(promise_.num_values) / static_cast<double>(std::max<int64_t>(1, promise_.num_rows));
  size_t stop = 0;
  for (double num = 0; stop < pages_.size() && (num < needed || stop == 0); ++stop)
    if (pages_[stop].kind != kDictionary) num += static_cast<double>(pages_[stop].num_entries);
  return stop;
}

bool ColumnReader::has(int64_t first, int64_t num_rows) const {
  const size_t stop = stop_for(first, num_rows);
  return stop > 0 && stop < pages_.size();
}

int64_t ColumnReader::plan(int64_t first, int64_t num_rows, int64_t begin) {
  if (first < 0 || first > num_rows_ || num_rows < 0) return -1;
  stop_ = stop_for(first, num_rows);
  first_ = first;
  Rows& at = layout_;
  at = {};
  int64_t num_entries = 0, dictionary_values = 0, dictionary_bytes = 0;
  at.string_bytes = column_.is_binary ? num_string_bytes_ + kAhead : 0;
  bool has_offsets = column_.is_list ? column_.list_size < 0 : column_.is_binary && num_values_ > num_indices_;
  for (size_t i = 0; i < stop_; ++i) {
    const Page& page = pages_[i];
    if (page.kind == kDictionary) {
      dictionary_values = std::max(dictionary_values, page.num_entries);
      dictionary_bytes = std::max(dictionary_bytes, page.plain_bytes);
      continue;
    }
    num_entries += page.num_entries;
    if (column_.is_binary && !is_by_dictionary(page.encoding)) {
      at.string_bytes += page.plain_bytes;
      has_offsets = true;
    }
  }
  const int64_t most_rows = rows_left_ - first, offset_bytes = column_.is_large ? 8 : 4;
  at.rows = num_rows_ - first + num_entries;
  at.values = at.rows;
  if (column_.is_list) {
    at.values = num_values_ - (first < num_rows_ ? offsets_[static_cast<size_t>(first)] : num_values_) + num_entries;
    at.rows = std::min(at.rows, most_rows);
  }
  if (at.rows > most_rows || at.values > kMostBytes / column_.width) return -1;
  at.values_at = begin;
  at.strings_at = begin + aligned(column_.is_bit ? (at.values + 7) / 8 : at.values * column_.value_bytes);
  at.valid_at = at.strings_at + aligned(at.string_bytes);
  at.offsets_at = at.valid_at + (column_.has_nulls() ? aligned((at.rows + 7) / 8) : 0);
  at.dictionary_at = at.offsets_at + (has_offsets ? aligned((at.rows + 1) * offset_bytes) : 0);
  at.dictionary_offsets_at = at.dictionary_at + (column_.is_binary ? aligned(dictionary_bytes + kAhead) : 0);
  return at.dictionary_offsets_at + (column_.is_binary ? aligned((dictionary_values + 1) * offset_bytes) : 0);
}

bool ColumnReader::decode(std::span<uint8_t> memory) {
  keep_rest(memory);
  for (size_t i = 0; i < stop_; ++i)
    if (!decode_page(pages_[i], memory)) return false;
  pages_.erase(pages_.begin(), pages_.begin() + static_cast<ptrdiff_t>(stop_));
  stop_ = 0;
  return finish(memory);
}

// Lays rows that are left at the beginning of new memory: what was handed out is not written to again.
void ColumnReader::keep_rest(std::span<uint8_t> memory) {
  const int64_t width = column_.width, skipped_rows = std::exchange(first_, 0);
  const int64_t skipped = !column_.is_list ? skipped_rows
                          : skipped_rows < num_rows_ ? offsets_[static_cast<size_t>(skipped_rows)] : num_values_;
  const auto old_values = values_, old_strings = strings_;
  const auto old_wide = std::move(wide_);
  const int64_t room = layout_.values * width;
  if (!column_.is_stored_alike()) wide_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(room));
  values_ = wide_ ? std::span(wide_.get(), static_cast<size_t>(room)) : part_of(memory, layout_.values_at, room);
  num_rows_ -= skipped_rows;
  num_values_ -= skipped;
  rows_left_ -= skipped_rows;
  std::ranges::copy(part_of(old_values, skipped * width, num_values_ * width), values_.begin());
  strings_ = part_of(memory, layout_.strings_at, layout_.string_bytes);
  if (column_.is_binary) {
    int64_t skipped_bytes = 0;
    for (int64_t i = num_indices_; i < skipped_rows; ++i) skipped_bytes += load<int32_t>(old_values.data() + i * 4);
    num_string_bytes_ -= skipped_bytes;
    std::ranges::copy(part_of(old_strings, skipped_bytes, num_string_bytes_), strings_.begin());
    num_indices_ = std::max<int64_t>(0, num_indices_ - skipped_rows);
  }
  if (num_nulls_) {
    valid_.erase(valid_.begin(), valid_.begin() + skipped_rows);
    valid_.resize(static_cast<size_t>(layout_.rows));
    num_nulls_ = std::count(valid_.begin(), valid_.begin() + num_rows_, 0);
  }
  if (column_.is_list) {
    offsets_.erase(offsets_.begin(), offsets_.begin() + skipped_rows);
    offsets_.resize(static_cast<size_t>(layout_.rows) + 1);
    for (int64_t i = 0; i < num_rows_; ++i) offsets_[static_cast<size_t>(i)] -= skipped;
  }
}

bool ColumnReader::decode_page(const Page& page, std::span<uint8_t> memory) {
  const bool is_dictionary = page.kind == kDictionary;
  uint8_t* room = nullptr;
  if (column_.is_binary && (is_dictionary || !is_by_dictionary(page.encoding)))
    room = (is_dictionary ? memory.data() + layout_.dictionary_at : strings_.data() + num_string_bytes_) + kAhead;
  Body body;
  if (!open_page(page, codec_, room, body)) return false;
  if (is_dictionary) return read_dictionary(page, body, memory);
  Runs repetition, definition;
  if (page.kind == kDataV2) {
    const uint8_t *begin = page.stored.data(), *middle = begin + page.repetition_bytes;
    repetition = Runs(begin, middle);
    definition = Runs(middle, middle + page.definition_bytes);
  } else if (page.kind != kData || (column_.is_list && !take_levels(body, repetition)) ||
             (column_.full && !take_levels(body, definition))) {
    return false;
  }
  const int64_t num = page.num_entries, first = num_values_, first_row = num_rows_;
  int64_t num_there = num;
  if (column_.is_list) {
    if (!read_list_levels(repetition, definition, num, {column_.full, column_.empty}, offsets_, num_rows_, num_values_))
      return false;
    num_there = num_values_ - first;
  } else {
    if (column_.full) num_there = read_validity(definition, num);
    if (num_there < 0) return false;
    num_rows_ += num;
    num_values_ += num;
  }
  uint8_t* out = values_.data() + first * column_.width;
  if (!read_values(page, num_there, body, out)) return false;
  if (num_there < num_values_ - first) spread(out, num, num_there, valid_.data() + first_row, column_.width);
  // Once a writer has given its dictionary of strings up, it does not go back.
  if (!column_.is_binary || !is_by_dictionary(page.encoding)) return true;
  return std::exchange(num_indices_, num_values_) == first;
}

bool ColumnReader::read_dictionary(const Page& page, const Body& body, std::span<uint8_t> memory) {
  if (num_words_ || (page.encoding != kPlain && page.encoding != kPlainDictionary)) return false;
  num_words_ = page.num_entries;
  if (!column_.is_binary) {
    if (num_words_ * column_.width > body.size()) return false;
    dictionary_.assign(body.at, body.at + num_words_ * column_.width);
    return true;
  }
  if (num_words_ > page.plain_bytes / 4) return false;
  std::vector<int32_t> lengths(static_cast<size_t>(num_words_));
  const auto room = part_of(memory, layout_.dictionary_at, page.plain_bytes + kAhead);
  layout_.dictionary_values = num_words_;
  layout_.dictionary_bytes = split_byte_arrays(body, num_words_, reinterpret_cast<uint8_t*>(lengths.data()), room);
  return layout_.dictionary_bytes >= 0 &&
         write_offsets(num_words_, column_.is_large, memory.data() + layout_.dictionary_offsets_at,
                       [&](int64_t i) { return lengths[static_cast<size_t>(i)]; });
}

// Reads the levels of the next rows of a flat column; returns how many have a value, -1 where they are wrong.
int64_t ColumnReader::read_validity(const Runs& levels, int64_t num) {
  const int64_t num_there = read_flat_levels(levels, num, num_nulls_ ? valid_.data() + num_rows_ : nullptr);
  if (num_there < 0 || num_there == num) return num_there;
  if (!num_nulls_) {
    valid_.assign(static_cast<size_t>(layout_.rows), 1);
    read_flat_levels(levels, num, valid_.data() + num_rows_);
  }
  num_nulls_ += num - num_there;
  return num_there;
}

// Lays the `num` values of a page that are there one behind the other, from `out` on, which has room for them.
bool ColumnReader::read_values(const Page& page, int64_t num, Body body, uint8_t* out) {
  const int64_t width = column_.width;
  if (column_.is_bit) return read_bits(page.encoding, num, body, out);
  if (is_by_dictionary(page.encoding)) {
    if (num == 0) return true;
    if (body.size() < 1 || *body.at > 32) return false;
    const int bits = *body.at;
    const Runs indices(body.at + 1, body.end);
    if (column_.is_binary) return read_indices(indices, num, bits, num_words_, body.limit, out);
    return look_up(indices, num, bits, dictionary_.data(), num_words_, width, body.limit, out);
  }
  if (page.encoding == kByteStreamSplit && !column_.is_binary) {
    if (num * width != body.size()) return false;
    join_streams(body.at, num, width, out);
    return true;
  }
  if (page.encoding != kPlain) return false;
  if (column_.is_binary) {
    const int64_t num_bytes = split_byte_arrays(body, num, out, strings_.subspan(static_cast<size_t>(num_string_bytes_)));
    num_string_bytes_ += std::max<int64_t>(0, num_bytes);
    return num_bytes >= 0;
  }
  if (num * width > body.size()) return false;
  if (num) std::memcpy(out, body.at, static_cast<size_t>(num * width));
  return true;
}

// Brings what was decoded into Arrow's form.
bool ColumnReader::finish(std::span<uint8_t> memory) {
  const bool goes_on = column_.is_list && num_rows_ && num_rows_ < rows_left_;
  rows_ = layout_;
  rows_.rows = num_rows_ - goes_on;
  rows_.values = goes_on ? offsets_[static_cast<size_t>(rows_.rows)] : num_values_;
  rows_.nulls = num_nulls_;
  rows_.indices = num_indices_;
  rows_.string_bytes = num_string_bytes_;
  const auto values = values_.first(static_cast<size_t>(rows_.values * column_.width));
  uint8_t* const offsets = memory.data() + rows_.offsets_at;
  if (column_.is_bit) pack_bits(values, memory.data() + rows_.values_at);
  else if (column_.value_bytes == 1 && column_.width == 4) narrow<uint8_t>(values, memory.data() + rows_.values_at);
  else if (column_.value_bytes == 2 && column_.width == 4) narrow<uint16_t>(values, memory.data() + rows_.values_at);
  if (num_nulls_) pack_bits(std::span(valid_).first(static_cast<size_t>(num_rows_)), memory.data() + rows_.valid_at);
  if (column_.is_list) {
    offsets_[static_cast<size_t>(rows_.rows)] = rows_.values;
    const auto length_of = [&](int64_t i) { return offsets_[static_cast<size_t>(i) + 1] - offsets_[static_cast<size_t>(i)]; };
    if (column_.list_size < 0) return write_offsets(rows_.rows, column_.is_large, offsets, length_of);
    for (int64_t i = 0; i < rows_.rows; ++i)
      if (length_of(i) != column_.list_size) return false;
  } else if (column_.is_binary && num_values_ > num_indices_) {
    // Behind those of values that are indices, so that one validity bitmap is that of both.
    return write_offsets(num_values_ - num_indices_, column_.is_large, offsets + num_indices_ * (column_.is_large ? 8 : 4),
                         [&](int64_t i) { return load<int32_t>(values_.data() + (num_indices_ + i) * 4); });
  }
  return true;
}

}  // namespace stoker::parquet
