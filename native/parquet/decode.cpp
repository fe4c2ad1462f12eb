#include "decode.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "values.h"

namespace stoker::parquet {
namespace {

// Behind a page that was decompressed there is room to read eight bytes at once.
constexpr int64_t kMargin = 8;

// Room for one page that a thread uses again, as fresh memory costs more than filling it: for the largest page that is
// usual, several times. A larger one lives as long as this does.
class Scratch {
 public:
  Scratch(const Page& page, Codec codec) {
    const int64_t num_bytes = page.is_packed && codec != Codec::kUncompressed ? page.plain_bytes + kMargin : 0;
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

constexpr int64_t kMostOffset = 0x7FFFFFFF;
// Of one column: sizes of all of them together stay numbers of 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 46;

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

bool decode_page(const Page& page, std::span<const uint8_t> stored, Codec codec, const Column& column,
                 const Target& target, Progress& progress) {
  const Scratch scratch(page, codec);
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

ColumnReader::ColumnReader(const Column& column, Codec codec, const Promise& promise)
    : column_(column), codec_(codec), promise_(promise), rows_left_(promise.num_rows) {}

int64_t ColumnReader::scan(std::span<const uint8_t> content) {
  std::vector<Page> found;
  const int64_t end = scan_pages(content, found);
  for (const Page& page : found) {
    const auto stored = part_of(content, page.at, page.stored_bytes);
    if (page.checksum >= 0 && crc32(stored) != static_cast<uint32_t>(page.checksum)) return -1;
    if (page.kind != kDictionary) {
      num_entries_ += page.num_entries;
      if (page.num_entries > promise_.most_page_values) return -1;
    }
    num_bytes_ = column_.is_binary ? num_bytes_ + page.plain_bytes : page.plain_bytes;
    if (num_bytes_ > promise_.most_bytes) return -1;
    pages_.push_back({page, stored});
  }
  return end;
}

// Pages of values are counted by their entries: of lists they are as many as a row has on average, times the rows.
size_t ColumnReader::stop_for(int64_t first, int64_t num_rows) const {
  const bool is_last = num_rows >= rows_left_ - first;
  if (is_last) return pages_.size();
  // A list is whole when the next one has begun.
  double needed = static_cast<double>(first + num_rows - progress_.rows + column_.is_list);
  if (column_.is_list) needed *= static_cast<double>(promise_.num_values) / static_cast<double>(std::max<int64_t>(1, promise_.num_rows));
  size_t stop = next_;
  for (double num = 0; stop < pages_.size() && (num < needed || stop == next_); ++stop)
    if (pages_[stop].page.kind != kDictionary) num += static_cast<double>(pages_[stop].page.num_entries);
  return stop;
}

bool ColumnReader::has(int64_t first, int64_t num_rows) const {
  const size_t stop = stop_for(first, num_rows);
  return stop > next_ && stop < pages_.size();
}

int64_t ColumnReader::plan(int64_t first, int64_t num_rows) {
  if (first < 0 || first > progress_.rows || num_rows < 0) return -1;
  stop_ = stop_for(first, num_rows);
  first_ = first;
  Rows& at = layout_;
  at = {};
  at.rows = progress_.rows - first;
  at.values = progress_.values - (column_.is_list ? first < progress_.rows ? offsets_[static_cast<size_t>(first)] : progress_.values : first);
  at.string_bytes = progress_.string_bytes;
  int64_t num_entries = 0, dictionary_values = 0;
  bool has_offsets = column_.is_list ? column_.list_size < 0 : column_.is_binary && progress_.values > indices_;
  for (size_t i = next_; i < stop_; ++i) {
    const Page& page = pages_[i].page;
    if (page.kind == kDictionary) {
      dictionary_values = std::max(dictionary_values, page.num_entries);
      at.dictionary_bytes = std::max(at.dictionary_bytes, page.plain_bytes);
      continue;
    }
    num_entries += page.num_entries;
    if (column_.is_binary && !is_by_dictionary(page.encoding)) {
      at.string_bytes += page.plain_bytes;
      has_offsets = true;
    }
  }
  const int64_t most_rows = rows_left_ - first;
  at.values += num_entries;
  at.rows = column_.is_list ? std::min(at.rows + num_entries, most_rows) : at.rows + num_entries;
  if (at.rows > most_rows || at.values > kMostBytes / column_.width) return -1;
  const int64_t offset_bytes = column_.is_large ? 8 : 4;
  at.strings_at = aligned(column_.is_bit ? (at.values + 7) / 8 : at.values * column_.value_bytes);
  at.valid_at = at.strings_at + aligned(at.string_bytes);
  at.offsets_at = at.valid_at + (column_.has_nulls() ? aligned((at.rows + 7) / 8) : 0);
  at.dictionary_at = at.offsets_at + (has_offsets ? aligned((at.rows + 1) * offset_bytes) : 0);
  at.dictionary_offsets_at = at.dictionary_at + (column_.is_binary ? aligned(at.dictionary_bytes) : 0);
  return at.dictionary_offsets_at + (column_.is_binary ? aligned((dictionary_values + 1) * offset_bytes) : 0);
}

// Lays rows that are left at the beginning of new memory: what was handed out is not written to again.
void ColumnReader::keep_rest(std::span<uint8_t> memory) {
  const size_t width = static_cast<size_t>(column_.width), num_rows = static_cast<size_t>(progress_.rows - first_);
  const size_t first = static_cast<size_t>(first_), end = static_cast<size_t>(progress_.values);
  const size_t begin = !column_.is_list ? first : num_rows ? static_cast<size_t>(offsets_[first]) : end;
  const Target old = target_;
  Bytes wide, valid;
  if (column_.is_stored_alike()) {
    target_.values = part_of(memory, 0, layout_.values * column_.width);
  } else {
    wide.resize(static_cast<size_t>(layout_.values) * width);
    target_.values = wide.span();
  }
  if (end > begin) std::memcpy(target_.values.data(), old.values.data() + begin * width, (end - begin) * width);
  if (column_.is_binary) {
    int64_t skipped = 0;
    for (int64_t i = indices_; i < first_; ++i) skipped += load<int32_t>(old.values.data() + i * 4);
    target_.bytes = part_of(memory, layout_.strings_at, layout_.string_bytes);
    progress_.string_bytes -= skipped;
    if (progress_.string_bytes)
      std::memcpy(target_.bytes.data(), old.bytes.data() + skipped, static_cast<size_t>(progress_.string_bytes));
    indices_ = std::max<int64_t>(0, indices_ - first_);
  }
  if (column_.has_nulls()) {
    valid.resize(static_cast<size_t>(layout_.rows));
    target_.valid = valid.span();
    if (progress_.nulls) {
      std::copy_n(old.valid.begin() + first_, num_rows, target_.valid.begin());
      progress_.nulls = std::count(target_.valid.begin(), target_.valid.begin() + static_cast<ptrdiff_t>(num_rows), 0);
    }
  }
  if (column_.is_list) {
    offsets_.erase(offsets_.begin(), offsets_.begin() + first_);
    offsets_.resize(static_cast<size_t>(layout_.rows) + 1);
    for (size_t i = 0; i < num_rows; ++i) offsets_[i] -= static_cast<int64_t>(begin);
    target_.offsets = offsets_;
  }
  wide_ = std::move(wide);
  valid_ = std::move(valid);
  progress_.rows = static_cast<int64_t>(num_rows);
  progress_.values = static_cast<int64_t>(end - begin);
  rows_left_ -= first_;
  first_ = 0;
}

bool ColumnReader::read_strings_of_dictionary(const StoredPage& of, std::span<uint8_t> memory) {
  const Page& page = of.page;
  if (progress_.dictionary_values || (page.encoding != kPlain && page.encoding != kPlainDictionary)) return false;
  if (page.num_entries > page.plain_bytes / 4) return false;
  std::vector<int32_t> lengths(static_cast<size_t>(page.num_entries));
  const Scratch scratch(page, codec_);
  Content content;
  if (!open_page(page, of.stored, codec_, scratch, content)) return false;
  const auto room = part_of(memory, layout_.dictionary_at, page.plain_bytes);
  auto* out = reinterpret_cast<uint8_t*>(lengths.data());
  layout_.dictionary_bytes = split_byte_arrays(content.body, page.num_entries, out, room);
  progress_.dictionary_values = layout_.dictionary_values = page.num_entries;
  return layout_.dictionary_bytes >= 0 &&
         write_offsets(page.num_entries, column_.is_large, memory.data() + layout_.dictionary_offsets_at,
                       [&](int64_t i) { return lengths[static_cast<size_t>(i)]; });
}

bool ColumnReader::decode_chosen(std::span<uint8_t> memory) {
  for (; next_ < stop_; ++next_) {
    const auto& [page, stored] = pages_[next_];
    if (page.kind == kDictionary && column_.is_binary) {
      if (!read_strings_of_dictionary(pages_[next_], memory)) return false;
      continue;
    }
    if (page.kind == kDictionary) {
      const int64_t num_bytes = page.num_entries * column_.width;
      if (num_bytes > page.plain_bytes || progress_.dictionary_values) return false;
      dictionary_.resize(static_cast<size_t>(num_bytes));
      target_.bytes = dictionary_;
    }
    const bool is_by_index = column_.is_binary && is_by_dictionary(page.encoding);
    // Once a writer has given its dictionary up, it does not go back.
    if (is_by_index && indices_ != progress_.values) return false;
    if (column_.is_binary && !is_by_index && page.encoding != kPlain) return false;
    if (!decode_page(page, stored, codec_, column_, target_, progress_)) return false;
    if (is_by_index) indices_ = progress_.values;
  }
  pages_.erase(pages_.begin(), pages_.begin() + static_cast<ptrdiff_t>(next_));
  next_ = stop_ = 0;
  return true;
}

bool ColumnReader::decode(std::span<uint8_t> memory) {
  keep_rest(memory);
  return decode_chosen(memory) && finish(memory);
}

ColumnReader::Rows ColumnReader::rows(int64_t base) const {
  Rows rows = rows_;
  for (int64_t* at : {&rows.values_at, &rows.valid_at, &rows.offsets_at, &rows.strings_at, &rows.dictionary_offsets_at,
                      &rows.dictionary_at})
    *at += base;
  return rows;
}

bool ColumnReader::finish(std::span<uint8_t> memory) {
  const bool goes_on = column_.is_list && progress_.rows < rows_left_;
  const int64_t num_rows = std::max<int64_t>(0, progress_.rows - goes_on);
  rows_ = layout_;
  rows_.rows = num_rows;
  rows_.nulls = progress_.nulls;
  rows_.indices = indices_;
  rows_.string_bytes = progress_.string_bytes;
  rows_.values = goes_on ? (progress_.rows ? offsets_[static_cast<size_t>(num_rows)] : 0) : progress_.values;
  const auto values = target_.values.first(static_cast<size_t>(rows_.values * column_.width));
  if (column_.is_bit) pack_bits(values, memory.data());
  else if (column_.value_bytes == 1 && column_.width == 4) narrow<uint8_t>(values, memory.data());
  else if (column_.value_bytes == 2 && column_.width == 4) narrow<uint16_t>(values, memory.data());
  if (rows_.nulls) pack_bits(target_.valid.first(static_cast<size_t>(num_rows)), memory.data() + rows_.valid_at);
  if (column_.is_list) return finish_lists(memory, num_rows);
  return indices_ == progress_.values || !column_.is_binary || finish_strings(memory);
}

bool ColumnReader::finish_lists(std::span<uint8_t> memory, int64_t num_rows) {
  offsets_[static_cast<size_t>(num_rows)] = rows_.values;
  const auto length_of = [&](int64_t i) {
    return offsets_[static_cast<size_t>(i) + 1] - offsets_[static_cast<size_t>(i)];
  };
  if (column_.list_size < 0) return write_offsets(num_rows, column_.is_large, memory.data() + rows_.offsets_at, length_of);
  for (int64_t i = 0; i < num_rows; ++i)
    if (length_of(i) != column_.list_size) return false;
  return true;
}

bool ColumnReader::finish_strings(std::span<uint8_t> memory) {
  const uint8_t* lengths = target_.values.data() + indices_ * 4;
  // Behind those of values that are indices, so that one validity bitmap is that of both.
  uint8_t* out = memory.data() + rows_.offsets_at + indices_ * (column_.is_large ? 8 : 4);
  return write_offsets(progress_.values - indices_, column_.is_large, out,
                       [&](int64_t i) { return load<int32_t>(lengths + i * 4); });
}

}  // namespace stoker::parquet
