#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../parquet/decode.h"
#include "bindings.h"

namespace stoker {
namespace {

using namespace parquet;
using Content = std::span<const uint8_t>;

// Pages of fewer bytes, and column chunks of fewer bytes whose headers are read, are done with in some 20 microseconds.
constexpr size_t kFewPlainBytes = 32 << 10, kFewBytes = 1 << 20;

// A column chunk, with what it was read from and decoded into.
struct Reader : ColumnReader {
  using ColumnReader::ColumnReader;

  std::vector<Array<const uint8_t>> contents;
  nb::object memory;
  int64_t end = 0;  // of what was planned

  int64_t scan_next(Array<const uint8_t>& content) {
    const Content last = contents.emplace_back(std::move(content));
    return without_lock(last.size() > kFewBytes, [&] { return scan(last); });
  }
};

std::vector<std::optional<ColumnReader::Rows>> decode_columns(const std::vector<Reader*>& readers,
                                                              const Array<uint8_t>& memory) {
  if (std::ranges::any_of(readers, [&](Reader* one) { return one->end < 0 || one->end > static_cast<int64_t>(memory.size()); }))
    throw std::invalid_argument("there must be memory for every column");
  std::vector<std::optional<ColumnReader::Rows>> found(readers.size());
  without_lock(memory.size() > kFewPlainBytes, [&] {
    for (size_t i = 0; i < readers.size(); ++i)
      if (readers[i]->decode(memory)) found[i] = readers[i]->rows();
  });
  for (Reader* reader : readers) {  // with the interpreter's lock
    if (!reader->has_pages()) reader->contents.clear();
    reader->memory = memory.owner();
  }
  return found;
}

void bind_headers(nb::module_& module) {
  nb::class_<Page>(module, "PageHeader", "What the header of a page says, which is proven by nothing.")
      .def_ro("kind", &Page::kind)
      .def_ro("at", &Page::at, "Where its content begins.")
      .def_ro("stored_bytes", &Page::stored_bytes)
      .def_ro("plain_bytes", &Page::plain_bytes)
      .def_ro("num_entries", &Page::num_entries)
      .def_ro("encoding", &Page::encoding)
      .def_ro("is_packed", &Page::is_packed)
      .def_prop_ro("level_bytes", &Page::level_bytes, "Of levels that stand uncompressed before the values.")
      .def_prop_ro("is_inflated", &is_inflated, "Whether it claims to become far more than what is stored of it.");
  module.def("read_page_header", [](Content content) -> std::optional<Page> {
               Page page;
               return read_page_header(content, page) ? std::optional(page) : std::nullopt;
             }, "content"_a, "Return the header of the page at the beginning; None where there is no whole one.");
  module.def("longest_string", [](Content content) {
               return without_lock(content.size() > kFewPlainBytes, [&] { return longest_byte_array(content); });
             }, "content"_a, "Return how many bytes the longest string of a dictionary page has.");
  module.def("sum_of_deltas", [](Content content) {
               return without_lock(content.size() > kFewPlainBytes, [&] { return sum_of_deltas(content); });
             }, "content"_a, "Return the sum of lengths that are encoded by their differences; -1 where they are none.");
  module.def("read_footer", [](Content content, const Matrix<int64_t>& groups, const Array<int64_t, 3>& chunks) {
               static_assert(sizeof(GroupNumbers) == 2 * sizeof(int64_t) && sizeof(ChunkNumbers) == 16 * sizeof(int64_t));
               if (groups.shape(1) != 2 || chunks.shape(2) != 16 || groups.shape(0) != chunks.shape(0))
                 throw std::invalid_argument("groups must be of shape [G, 2], chunks of shape [G, L, 16]");
               const std::span rows(reinterpret_cast<GroupNumbers*>(groups.data()), groups.shape(0));
               const std::span cells(reinterpret_cast<ChunkNumbers*>(chunks.data()), groups.shape(0) * chunks.shape(1));
               return without_lock(content.size() > kFewPlainBytes, [&] { return read_footer(content, rows, cells); });
             }, "content"_a, "groups"_a, "chunks"_a,
             "Fill in what a footer says of its row groups and column chunks; False where it is corrupt.");
}

}  // namespace

void bind_parquet(nb::module_& module) {
  nb::class_<Column>(module, "Column", "What the decoder of pages is to know of a column.")
      .def(nb::init<int64_t, int, int, bool, bool, bool, int64_t, bool, int64_t>(), nb::kw_only(), "width"_a, "full"_a,
           "empty"_a, "is_list"_a, "is_bit"_a, "is_binary"_a, "value_bytes"_a, "is_large"_a, "list_size"_a)
      .def_ro("is_list", &Column::is_list)
      .def_ro("is_binary", &Column::is_binary);
  nb::class_<Reader>(module, "ColumnReader", "A column chunk that is decoded as a whole, or some rows at a time.")
      .def("__init__", [](Reader* self, const Column& column, int64_t codec, int64_t num_rows, int64_t num_values,
                          int64_t most_bytes, int64_t most_page_values) {
             new (self) Reader(column, static_cast<Codec>(codec), Promise{num_rows, num_values, most_bytes, most_page_values});
           }, "column"_a, nb::kw_only(), "codec"_a, "num_rows"_a, "num_values"_a, "most_bytes"_a, "most_page_values"_a)
      .def("scan", &Reader::scan_next, "content"_a,
           "Find the pages in what was read; return where the last one ends, -1 where one is wrong.")
      .def("has", &Reader::has, "first"_a, "num_rows"_a, "Whether the pages found are likely to have the next rows.")
      .def("plan", [](Reader& self, int64_t first, int64_t num_rows, int64_t at) {
             return self.end = self.plan(first, num_rows, at);
           }, "first"_a, "num_rows"_a, "at"_a,
           "Choose the pages of the next rows, to be decoded behind byte `at` of the memory; return where they end\n"
           "there, -1 where the rows are too many.")
      .def_prop_ro("num_entries", &Reader::num_entries)
      .def_prop_ro("has_pages", &Reader::has_pages);
  using Rows = ColumnReader::Rows;
  nb::class_<Rows>(module, "DecodedRows", "What was decoded, and where in the memory it begins.")
      .def_ro("rows", &Rows::rows)
      .def_ro("values", &Rows::values)
      .def_ro("nulls", &Rows::nulls)
      .def_ro("indices", &Rows::indices)
      .def_ro("values_at", &Rows::values_at)
      .def_ro("valid_at", &Rows::valid_at)
      .def_ro("offsets_at", &Rows::offsets_at)
      .def_ro("strings_at", &Rows::strings_at)
      .def_ro("string_bytes", &Rows::string_bytes)
      .def_ro("dictionary_values", &Rows::dictionary_values)
      .def_ro("dictionary_offsets_at", &Rows::dictionary_offsets_at)
      .def_ro("dictionary_at", &Rows::dictionary_at)
      .def_ro("dictionary_bytes", &Rows::dictionary_bytes);
  module.def("decode_columns", &decode_columns, "readers"_a, "memory"_a,
             "Decode the pages that were planned, all columns in one call; None for each of which one is wrong.");
  module.def("can_decompress", [](int64_t codec) { return can_decompress(static_cast<Codec>(codec)); }, "codec"_a,
             "Whether pages of a codec, a number of the format, are decompressed here.");
  bind_headers(module);
}

}  // namespace stoker
