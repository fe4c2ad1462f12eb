#include <algorithm>
#include <numeric>
#include <random>

#include "check.h"
#include "hash.h"
#include "parquet/decode.h"
#include "parquet/footer.h"
#include "parquet/levels.h"
#include "parquet/snappy.h"
#include "parquet/thrift.h"
#include "parquet/values.h"

using namespace stoker::parquet;

namespace {

using Bytes = std::vector<uint8_t>;

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
  Bytes bytes, values, valid;
  std::vector<int64_t> offsets;
  Progress progress;
  bool is_done = false;
};

// Decodes a column chunk into memory that is exactly as large as its headers say.
Decoded decoded(const Bytes& content, const Column& column, size_t num_rows, Codec codec = Codec::kUncompressed) {
  const Bytes exact(content);
  std::vector<Page> pages;
  const int64_t end = scan_pages(exact, pages);
  const PageTotals totals = totals_of(pages);
  Decoded out;
  if (end != static_cast<int64_t>(exact.size()) || totals.num_entries > 1 << 16 || totals.plain_bytes > 1 << 20) return out;
  const size_t width = static_cast<size_t>(column.width);
  out.bytes.resize(column.is_binary ? static_cast<size_t>(totals.plain_bytes) : static_cast<size_t>(totals.num_dictionary_values) * width);
  out.values.resize(static_cast<size_t>(totals.num_entries) * width);
  out.valid.resize(column.has_nulls() ? num_rows : 0);
  out.offsets.resize(column.is_list ? num_rows + 1 : 0);
  out.is_done = decode_pages(pages, exact, codec, column, {out.bytes, out.values, out.valid, out.offsets}, out.progress);
  return out;
}

template <typename T>
std::vector<T> values_of(const Decoded& found) {
  std::vector<T> values(static_cast<size_t>(found.progress.values));
  std::copy_n(found.values.data(), values.size() * sizeof(T), reinterpret_cast<uint8_t*>(values.data()));
  return values;
}

constexpr Column kNumbers{4, 0, -1, false, false, false}, kNullable{4, 1, -1, false, false, false},
    kLists{4, 3, 1, true, false, false}, kBits{1, 0, -1, false, true, false}, kBinary{4, 1, -1, false, false, true},
    kWide{3, 1, -1, false, false, false};

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
    CHECK_EQUAL(found(i).progress.rows, static_cast<int64_t>(all[i].num_rows));
  }
  CHECK(values_of<int32_t>(found(0)) == std::vector<int32_t>({1, 2, 3}));
  CHECK(values_of<int32_t>(found(1)) == std::vector<int32_t>({7, 8, 9, 7, 8, 9, 9, 9, 8, 8, 8, 8}));
  CHECK(values_of<int32_t>(found(2)) == std::vector<int32_t>({1, 2, 3, 0, 4, 5, 0, 6}));
  CHECK(found(2).valid == Bytes({1, 1, 1, 0, 1, 1, 0, 1}));
  CHECK_EQUAL(found(2).progress.nulls, 2);
  const Decoded wide = found(3), strings = found(8);
  CHECK_EQUAL(std::count(wide.values.begin(), wide.values.end(), 'x'), 18);
  CHECK(values_of<int32_t>(found(4)) == std::vector<int32_t>({1, 2}));
  CHECK(values_of<uint8_t>(found(5)) == Bytes({1, 0, 0, 0, 1, 1, 0, 1, 1, 1}));
  CHECK(values_of<uint8_t>(found(6)) == Bytes(10, 1));
  CHECK(values_of<int32_t>(found(7)) == std::vector<int32_t>({1, 2, 3, 4, 5}));
  CHECK_EQUAL(found(7).offsets[0], 0);
  CHECK_EQUAL(found(7).offsets[1], 2);
  CHECK_EQUAL(found(7).offsets[2], 2);
  CHECK(values_of<int32_t>(strings) == std::vector<int32_t>({2, 0, 1}));
  CHECK_EQUAL(std::string(strings.bytes.begin(), strings.bytes.begin() + 3), "abc");
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

TEST("several column chunks are decoded at once, and one that is wrong leaves the others as they are") {
  const auto all = sound();
  const Bytes wrong = page_of(kData, 3, 99, bytes_of<int32_t>({1, 2, 3}));
  const Bytes content = joined({all[0].content, wrong, all[0].content});
  const int64_t first = static_cast<int64_t>(all[0].content.size()), second = first + static_cast<int64_t>(wrong.size());
  const std::vector<int64_t> borders{0, first, second, static_cast<int64_t>(content.size())};
  ColumnChunks chunks(content, borders);
  const std::vector<int64_t> num_values(3, 3), most_bytes(3, 100), other_values{3, 3, 4};
  CHECK(!chunks.lay_out({kNumbers, kNumbers, kNumbers}, 3, other_values, most_bytes));
  CHECK(chunks.lay_out({kNumbers, kNumbers, kNumbers}, 3, num_values, most_bytes));
  Bytes values(static_cast<size_t>(chunks.size().values));
  const auto outcomes = chunks.decode(Codec::kUncompressed, {{}, values, {}, {}});
  CHECK(outcomes[0].is_done && !outcomes[1].is_done && outcomes[2].is_done);
  CHECK_EQUAL(outcomes[2].begin.values, 128);
  CHECK_EQUAL(values[128 + 8], 3);
  CHECK_THROWS(chunks.decode(Codec::kUncompressed, {{}, {}, {}, {}}), std::invalid_argument);
  CHECK_THROWS(ColumnChunks(content, std::vector<int64_t>{0, 5, 4}), std::invalid_argument);
  CHECK_THROWS(ColumnChunks(content, std::vector<int64_t>{0, 1 << 20}), std::invalid_argument);
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
  CHECK(unsnap(packed, out));
  CHECK_EQUAL(std::string(out.begin(), out.end()), "abcdabcdabcddddddddddddd");
  for (size_t num = 0; num < packed.size(); ++num) CHECK(!unsnap(Bytes(packed.begin(), packed.begin() + static_cast<ptrdiff_t>(num)), out));
  Bytes more(25);
  CHECK(!unsnap(packed, more));
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
  CHECK_EQUAL(stoker::hash({}), 0x2D06800538D394C2u);  // by the xxhash package
  std::vector<uint64_t> all;
  for (size_t num = 0; num <= bytes.size(); ++num) all.push_back(stoker::hash(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(num))));
  std::ranges::sort(all);
  CHECK(std::ranges::adjacent_find(all) == all.end());
}
