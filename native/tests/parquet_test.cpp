#include <algorithm>
#include <numeric>
#include <random>

#include "check.h"
#include "hash.h"
#include "parquet/decode.h"
#include "parquet/metadata.h"
#include "parquet/codecs.h"
#include "parquet/thrift.h"
#include "parquet/values.h"

using namespace stoker::parquet;

namespace {

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes varint(uint64_t number) {
  Bytes bytes;
  for (; number > 127; number >>= 7) bytes.push_back(static_cast<uint8_t>(number | 128));
  bytes.push_back(static_cast<uint8_t>(number));
  return bytes;
}

Bytes field(int delta, int64_t value) {
  return joined({{static_cast<uint8_t>(delta << 4 | kI32)},
                 varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63))});
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
  return Bytes(begin, begin + values.size() * sizeof(T));
}

// A page of the first version, or a dictionary, as it is stored without a codec.
Bytes page_of(int64_t kind, int64_t num, int64_t encoding, const Bytes& content) {
  const int64_t size = static_cast<int64_t>(content.size());
  Bytes inner = joined({field(1, num), field(1, encoding)});
  if (kind == kData) inner = joined({inner, field(1, kRle), field(1, kRle)});
  const uint8_t number = kind == kData ? 5 : 7;
  return joined({field(1, kind), field(1, size), field(1, size), {static_cast<uint8_t>((number - 3) << 4 | kStruct)},
                 inner, {0, 0}, content});
}

// Packs numbers of `width` bits as one run, with the bits that pad its last group.
Bytes packed(std::vector<uint32_t> numbers, int width) {
  numbers.resize((numbers.size() + 7) / 8 * 8);
  Bytes bits(numbers.size() * static_cast<size_t>(width) / 8);
  for (size_t i = 0; i < numbers.size(); ++i)
    for (size_t k = 0; k < static_cast<size_t>(width); ++k) {
      const size_t bit = i * static_cast<size_t>(width) + k;
      bits[bit / 8] = static_cast<uint8_t>(bits[bit / 8] | ((numbers[i] >> k & 1) << (bit % 8)));
    }
  return joined({varint(numbers.size() / 8 << 1 | 1), bits});
}

Bytes repeated(uint32_t number, uint64_t count, int width) {
  Bytes bytes = varint(count << 1);
  for (int i = 0; i < (width + 7) / 8; ++i) bytes.push_back(static_cast<uint8_t>(number >> (8 * i)));
  return bytes;
}

Bytes behind_length(const Bytes& bytes) { return joined({bytes_of<uint32_t>({static_cast<uint32_t>(bytes.size())}), bytes}); }

struct Decoded {
  Bytes memory;
  ColumnReader::Rows rows{};
  bool is_done = false;
};

// Decodes a column chunk into memory that is exactly as large as its headers say.
Decoded decoded(const Bytes& content, const Column& column, size_t num_rows, Codec codec = Codec::kUncompressed) {
  const Bytes exact(content);
  ColumnReader reader(column, codec, {static_cast<int64_t>(num_rows), 1 << 16, 1 << 20, 1 << 16});
  Decoded out;
  if (reader.scan(exact) != static_cast<int64_t>(exact.size())) return out;
  const int64_t num_bytes = reader.plan(0, static_cast<int64_t>(num_rows), 0);
  if (num_bytes < 0) return out;
  out.memory.resize(static_cast<size_t>(num_bytes));
  out.is_done = reader.decode(out.memory);
  out.rows = reader.rows();
  return out;
}

template <typename T>
std::vector<T> numbers_at(const Decoded& found, int64_t at, int64_t num) {
  std::vector<T> values(static_cast<size_t>(num));
  std::copy_n(found.memory.data() + at, values.size() * sizeof(T), reinterpret_cast<uint8_t*>(values.data()));
  return values;
}

std::vector<int32_t> values_of(const Decoded& found) { return numbers_at<int32_t>(found, found.rows.values_at, found.rows.values); }

constexpr Column kNumbers{4, 0, -1, false, false, false, 4, false, -1},
    kNullable{4, 1, -1, false, false, false, 4, false, -1}, kLists{4, 3, 1, true, false, false, 4, false, -1},
    kBits{1, 0, -1, false, true, false, 1, false, -1}, kBinary{4, 1, -1, false, false, true, 4, false, -1},
    kWide{3, 1, -1, false, false, false, 3, false, -1};

// Column chunks that are sound, each with its column and rows.
struct Sound {
  Bytes content;
  Column column;
  size_t num_rows;
};

std::vector<Sound> sound() {
  const Bytes dictionary = page_of(kDictionary, 3, kPlain, bytes_of<int32_t>({7, 8, 9}));
  const Bytes indices = joined({{2}, packed({0, 1, 2, 0, 1, 2, 2, 2}, 2), repeated(1, 4, 2)});
  const Bytes levels = behind_length(joined({repeated(1, 3, 1), packed({0, 1, 1, 0, 1}, 1)}));
  const Bytes strings = joined({behind_length({'a', 'b'}), behind_length({}), behind_length({'c'})});
  const Bytes repetition = behind_length(packed({0, 1, 0, 0, 1, 1}, 1)), full = behind_length(packed({3, 3, 1, 3, 3, 3}, 2));
  return {
      {page_of(kData, 3, kPlain, bytes_of<int32_t>({1, 2, 3})), kNumbers, 3},
      {joined({dictionary, page_of(kData, 12, kRleDictionary, indices)}), kNumbers, 12},
      {page_of(kData, 8, kPlain, joined({levels, bytes_of<int32_t>({1, 2, 3, 4, 5, 6})})), kNullable, 8},
      {page_of(kData, 8, kPlain, joined({levels, Bytes(18, 'x')})), kWide, 8},
      {page_of(kData, 2, kByteStreamSplit, {1, 2, 0, 0, 0, 0, 0, 0}), kNumbers, 2},
      {page_of(kData, 10, kPlain, {0b10110001, 0b11}), kBits, 10},
      {page_of(kData, 10, kRle, behind_length(repeated(1, 10, 1))), kBits, 10},
      {page_of(kData, 6, kPlain, joined({repetition, full, bytes_of<int32_t>({1, 2, 3, 4, 5})})), kLists, 3},
      {page_of(kData, 3, kPlain, joined({behind_length(repeated(1, 3, 1)), strings})), kBinary, 3},
  };
}

}  // namespace

TEST("values of plain pages, dictionaries, streams and bits are laid one behind the other") {
  const auto all = sound();
  auto found = [&](size_t i) { return decoded(all[i].content, all[i].column, all[i].num_rows); };
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(found(i).is_done);
    CHECK_EQUAL(found(i).rows.rows, static_cast<int64_t>(all[i].num_rows));
  }
  CHECK(values_of(found(0)) == std::vector<int32_t>({1, 2, 3}));
  CHECK(values_of(found(1)) == std::vector<int32_t>({7, 8, 9, 7, 8, 9, 9, 9, 8, 8, 8, 8}));
  CHECK(values_of(found(2)) == std::vector<int32_t>({1, 2, 3, 0, 4, 5, 0, 6}));
  CHECK_EQUAL(found(2).memory[static_cast<size_t>(found(2).rows.valid_at)], 0b10110111);
  CHECK_EQUAL(found(2).rows.nulls, 2);
  const Decoded wide = found(3), strings = found(8);
  CHECK_EQUAL(std::count(wide.memory.begin(), wide.memory.end(), 'x'), 18);
  CHECK(values_of(found(4)) == std::vector<int32_t>({1, 2}));
  CHECK(numbers_at<uint8_t>(found(5), 0, 2) == Bytes({0b10110001, 0b11}));
  CHECK(numbers_at<uint8_t>(found(6), 0, 2) == Bytes({0xFF, 0b11}));
  CHECK(values_of(found(7)) == std::vector<int32_t>({1, 2, 3, 4, 5}));
  CHECK(numbers_at<int32_t>(found(7), found(7).rows.offsets_at, 4) == std::vector<int32_t>({0, 2, 2, 5}));
  CHECK(numbers_at<int32_t>(strings, strings.rows.offsets_at, 4) == std::vector<int32_t>({0, 2, 2, 3}));
  CHECK(numbers_at<char>(strings, strings.rows.strings_at, 3) == std::vector<char>({'a', 'b', 'c'}));
}

TEST("a damaged column chunk is decoded or given back, and nothing outside of its memory is touched") {
  std::mt19937 random(1);
  int num_done = 0, num_refused = 0;
  for (const Sound& one : sound())
    for (int i = 0; i < 4000; ++i) {
      Bytes content = one.content;
      for (uint32_t n = random() % 3 + 1; n > 0; --n) {
        const size_t at = random() % content.size();
        content[at] = static_cast<uint8_t>(random() % 2 ? random() : content[at] ^ 1u << random() % 8);
      }
      if (random() % 4 == 0) content.resize(random() % content.size());
      const Codec codec = random() % 4 ? Codec::kUncompressed : Codec::kSnappy;
      (decoded(content, one.column, one.num_rows, codec).is_done ? num_done : num_refused) += 1;
    }
  CHECK(num_done > 1000);
  CHECK(num_refused > 1000);
}

TEST("indices of every width are read, up to the last byte that there is") {
  std::mt19937 random(2);
  for (int bits = 0; bits <= 32; ++bits)
    for (size_t num : {1, 7, 8, 9, 100}) {
      const uint64_t end = uint64_t{1} << std::min(bits, 20);
      std::vector<uint32_t> indices(num);
      for (uint32_t& index : indices) index = static_cast<uint32_t>(random() % end);
      const Bytes run = packed(indices, bits);
      std::vector<uint32_t> found(num);
      auto take = [&](int64_t num_dictionary_values) {
        return read_indices(Runs(run.data(), run.data() + run.size()), static_cast<int64_t>(num), bits, num_dictionary_values,
                           run.data() + run.size(), reinterpret_cast<uint8_t*>(found.data()));
      };
      CHECK(take(static_cast<int64_t>(end)));
      CHECK(found == indices);
      CHECK(!take(*std::ranges::max_element(indices)));  // one index less than there must be
    }
}

TEST("values are spread to their rows whatever their width") {
  std::mt19937 random(3);
  for (size_t width : {1, 2, 4, 8, 12})
    for (uint32_t share : {1u, 8u, 15u}) {
      constexpr size_t num = 200;
      Bytes valid(num), values(num * width), expected(num * width);
      int64_t there = 0;
      for (size_t row = 0; row < num; ++row) {
        valid[row] = row / 40 % 2 ? random() % 16 < share : row / 80 % 2;  // runs, and without a pattern
        for (size_t k = 0; valid[row] && k < width; ++k)
          values[static_cast<size_t>(there) * width + k] = expected[row * width + k] = static_cast<uint8_t>(random());
        there += valid[row];
      }
      spread(values.data(), num, there, valid.data(), static_cast<int64_t>(width));
      CHECK(values == expected);
    }
}

TEST("a column chunk is read some rows at a time, and what is wrong in it is refused") {
  const Bytes page = page_of(kData, 3, kPlain, bytes_of<int32_t>({1, 2, 3}));
  const Bytes content = joined({page, page}), wrong = page_of(kData, 3, 99, bytes_of<int32_t>({1, 2, 3}));
  ColumnReader reader(kNumbers, Codec::kUncompressed, {6, 6, 100, 100});
  CHECK_EQUAL(reader.scan(page), static_cast<int64_t>(page.size()));
  Bytes first(static_cast<size_t>(reader.plan(0, 2, 64)));
  CHECK(reader.decode(first));
  CHECK_EQUAL(reader.rows().rows, 3);
  CHECK_EQUAL(reader.rows().values_at, 64);
  CHECK(!reader.has(2, 4));
  CHECK_EQUAL(reader.scan(page), static_cast<int64_t>(page.size()));
  CHECK_EQUAL(reader.num_entries(), 6);
  Bytes second(static_cast<size_t>(reader.plan(2, 4, 0)));
  CHECK(reader.decode(second));
  CHECK_EQUAL(reader.rows().rows, 4);
  CHECK(Bytes(second.begin(), second.begin() + 16) == bytes_of<int32_t>({3, 1, 2, 3}));
  ColumnReader damaged(kNumbers, Codec::kUncompressed, {3, 3, 100, 100}), few(kNumbers, Codec::kUncompressed, {2, 3, 100, 100});
  damaged.scan(wrong);
  Bytes memory(static_cast<size_t>(damaged.plan(0, 3, 0)));
  CHECK(!damaged.decode(memory));
  few.scan(page);
  CHECK_EQUAL(few.plan(0, 2, 0), -1);  // more rows than the footer promises
  CHECK_EQUAL(ColumnReader(kNumbers, Codec::kUncompressed, {3, 3, 4, 100}).scan(page), -1);
  CHECK_EQUAL(ColumnReader(kNumbers, Codec::kUncompressed, {3, 3, 100, 2}).scan(page), -1);
}

TEST("checksums are those of zlib") {
  CHECK_EQUAL(crc32({}), 0u);
  CHECK_EQUAL(crc32(Bytes({'1', '2', '3', '4', '5', '6', '7', '8', '9'})), 0xCBF43926u);
}

TEST("headers that contradict themselves are of no known page") {
  std::vector<Page> pages;
  const Bytes data = page_of(kData, 3, kPlain, bytes_of<int32_t>({1, 2, 3}));
  scan_pages(data, pages);
  CHECK_EQUAL(pages.at(0).kind, int64_t{kData});
  Bytes other = data;
  other[1] = kDictionary << 1;
  pages.clear();
  scan_pages(other, pages);
  CHECK_EQUAL(pages.at(0).kind, int64_t{kUnknownPage});
}

TEST("what snappy wrote is undone, and what is cut short is refused") {
  // A length; "abcd" as a literal; eight bytes from four back; twelve from one back.
  const Bytes packed{24, 3 << 2, 'a', 'b', 'c', 'd', 4 << 2 | 1, 4, 11 << 2 | 2, 1, 0};
  Bytes out(24);
  CHECK(decompress(Codec::kSnappy, packed, out));
  CHECK_EQUAL(std::string(out.begin(), out.end()), "abcdabcdabcddddddddddddd");
  for (size_t num = 0; num < packed.size(); ++num)
    CHECK(!decompress(Codec::kSnappy, Bytes(packed.begin(), packed.begin() + static_cast<ptrdiff_t>(num)), out));
  Bytes more(25);
  CHECK(!decompress(Codec::kSnappy, packed, more));
}

TEST("a footer with other row groups or columns than are expected is refused") {
  const Bytes chunk = joined({{3 << 4 | kStruct}, field(1, 2), {3 << 4 | kI32, 0, 0}, {0}});
  const Bytes group = joined({{1 << 4 | kList, 1 << 4 | kStruct}, chunk, {2 << 4 | kI64, 10, 0}});
  const Bytes footer = joined({{4 << 4 | kList, 1 << 4 | kStruct}, group, {0}});
  GroupNumbers groups[2]{};
  ChunkNumbers chunks[2]{};
  CHECK(read_footer(footer, {groups, 1}, {chunks, 1}));
  CHECK_EQUAL(groups[0].num_rows, 5);
  CHECK_EQUAL(chunks[0].type, 2);
  CHECK_EQUAL(chunks[0].has_metadata, 1);
  CHECK(!read_footer(footer, {groups, 2}, {chunks, 2}));
  CHECK(!read_footer(footer, {groups, 1}, {chunks, 2}));
  for (size_t num = 0; num < footer.size(); ++num)
    CHECK(!read_footer(std::span(footer).first(num), {groups, 1}, {chunks, 1}));
}

TEST("strings of any length are hashed as XXH3 does") {
  Bytes bytes(2048);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::vector<int64_t> all(bytes.size() + 1);
  for (size_t num = 0; num <= bytes.size(); ++num) {
    const Bytes exact(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(num));
    CHECK(stoker::hash_strings(exact, std::vector<int64_t>{0, static_cast<int64_t>(num)}, UINT64_MAX, {&all[num], 1}));
  }
  CHECK_EQUAL(static_cast<uint64_t>(all[0]), 0x2D06800538D394C2u);  // by the xxhash package
  std::ranges::sort(all);
  CHECK(std::ranges::adjacent_find(all) == all.end());
}

TEST("how large strings become is told without laying them out") {
  const Bytes strings = joined({behind_length({'a', 'b'}), behind_length({}), behind_length({'c'})});
  CHECK_EQUAL(longest_byte_array(strings), 2);
  CHECK_EQUAL(longest_byte_array(std::span(strings).first(strings.size() - 1)), static_cast<int64_t>(strings.size()) - 1);
  // 7, 5, 3, 1, 2: the example of the format.
  Bytes deltas = joined({varint(128), varint(4), varint(5), varint(14), varint(3), {2, 0, 0, 0}, {0xC0, 0, 0, 0, 0, 0, 0, 0}});
  CHECK_EQUAL(sum_of_deltas(deltas), 18);
  CHECK_EQUAL(sum_of_deltas(std::span(deltas).first(deltas.size() - 1)), -1);
  // Any number of equal ones in a few bytes; and one below zero.
  CHECK_EQUAL(sum_of_deltas(joined({varint(128), varint(4), varint(129), varint(2000), varint(0), {0, 0, 0, 0}})), 129000);
  CHECK_EQUAL(sum_of_deltas(joined({varint(128), varint(4), varint(2), varint(0), varint(1), {0, 0, 0, 0}})), -1);
}

TEST("a header that lacks what the format requires is none that is known") {
  const Bytes whole = page_of(kData, 3, kPlain, bytes_of<int32_t>({1, 2, 3}));
  const Bytes without = joined({field(1, kData), field(1, 4), field(1, 4), {2 << 4 | kStruct}, field(1, 1), field(1, kPlain), {0, 0}});
  Page page;
  CHECK(read_page_header(whole, page) && page.kind == kData);
  CHECK(read_page_header(without, page) && page.kind == kUnknownPage);
}
