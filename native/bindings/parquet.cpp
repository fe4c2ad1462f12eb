#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../parquet/decode.h"
#include "../parquet/values.h"
#include "bindings.h"

namespace stoker {
namespace {

using namespace parquet;

// Pages of fewer bytes, and column chunks of fewer bytes whose headers are read, are done with in some 20 microseconds.
constexpr int64_t kFewPlainBytes = 32 << 10, kFewBytes = 1 << 20;

// Gives the interpreter's lock up while `work` runs, where that takes longer than to get it back.
template <typename Work>
auto without_lock(bool is_long, Work work) {
  if (!is_long) return work();
  nb::gil_scoped_release without_lock;
  return work();
}

// A column chunk, with what it was read from and decoded into.
class Reader {
 public:
  Reader(const Column& column, int64_t codec, const Promise& promise)
      : reader_(column, static_cast<Codec>(codec), promise) {}

  int64_t scan(Array<const uint8_t> content) {
    contents_.push_back(std::move(content));
    const Array<const uint8_t>& last = contents_.back();
    return without_lock(static_cast<int64_t>(last.size()) > kFewBytes, [&] { return reader_.scan(last); });
  }

  ColumnReader& get() { return reader_; }

  // Called with the interpreter's lock, once all is decoded that `memory` had room for.
  void release(const nb::object& memory) {
    if (!reader_.has_pages()) contents_.clear();
    memory_ = memory;
  }

 private:
  ColumnReader reader_;
  std::vector<Array<const uint8_t>> contents_;
  nb::object memory_;
};

using Outcome = std::optional<ColumnReader::Rows>;

std::vector<Outcome> decode_columns(const std::vector<Reader*>& readers, const std::vector<int64_t>& sizes,
                                    const Array<uint8_t>& memory) {
  if (sizes.size() != readers.size() || std::ranges::any_of(sizes, [](int64_t size) { return size < 0; }) ||
      std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}) > memory.size())
    throw std::invalid_argument("there must be memory for every column");
  std::vector<Outcome> outcomes(readers.size());
  without_lock(memory.size() > kFewPlainBytes, [&] {
    size_t at = 0;
    for (size_t i = 0; i < readers.size(); ++i) {
      const size_t size = static_cast<size_t>(sizes[i]);
      ColumnReader& reader = readers[i]->get();
      if (reader.decode(memory.span().subspan(at, size))) outcomes[i] = reader.rows(static_cast<int64_t>(at));
      at += size;
    }
  });
  for (Reader* reader : readers) reader->release(memory.owner());
  return outcomes;
}

void bind_columns_of_pages(nb::module_& module) {
  nb::class_<Column>(module, "Column", "What the decoder of pages is to know of a column.")
      .def("__init__",
           [](Column* self, int64_t width, int full, int empty, bool is_list, bool is_bit, bool is_binary,
              int64_t value_bytes, bool is_large, int64_t list_size) {
             const bool is_narrow = width == 4 && (value_bytes == 1 || value_bytes == 2);
             if (width < 1 || (is_binary && width != 4) || (is_bit && width != 1) || (is_list && (full < 1 || full > 3)) ||
                 (value_bytes != width && !is_narrow))
               throw std::invalid_argument("there is no such column");
             new (self) Column{width, full, empty, is_list, is_bit, is_binary, value_bytes, is_large, list_size};
           },
           nb::kw_only(), nb::arg("width"), nb::arg("full"), nb::arg("empty"), nb::arg("is_list"), nb::arg("is_bit"),
           nb::arg("is_binary"), nb::arg("value_bytes"), nb::arg("is_large"), nb::arg("list_size"))
      .def_ro("is_list", &Column::is_list)
      .def_ro("is_binary", &Column::is_binary);
  nb::class_<Reader>(module, "ColumnReader", "A column chunk that is decoded as a whole, or some rows at a time.")
      .def("__init__",
           [](Reader* self, const Column& column, int64_t codec, int64_t num_rows, int64_t num_values,
              int64_t most_bytes, int64_t most_page_values) {
             new (self) Reader(column, codec, {num_rows, num_values, most_bytes, most_page_values});
           },
           nb::arg("column"), nb::kw_only(), nb::arg("codec"), nb::arg("num_rows"), nb::arg("num_values"),
           nb::arg("most_bytes"), nb::arg("most_page_values"))
      .def("scan", &Reader::scan, nb::arg("content"),
           "Find the pages in what was read; return where the last one ends, -1 where one is wrong.")
      .def("has", [](Reader& self, int64_t first, int64_t num_rows) { return self.get().has(first, num_rows); },
           nb::arg("first"), nb::arg("num_rows"), "Whether the pages found are likely to have the next rows.")
      .def("plan", [](Reader& self, int64_t first, int64_t num_rows) { return self.get().plan(first, num_rows); },
           nb::arg("first"), nb::arg("num_rows"),
           "Choose the pages of the next rows; return the bytes of memory they take, -1 where they are too many.")
      .def_prop_ro("num_entries", [](Reader& self) { return self.get().num_entries(); })
      .def_prop_ro("has_pages", [](Reader& self) { return self.get().has_pages(); });
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
  module.def("decode_columns", &decode_columns, nb::arg("readers"), nb::arg("sizes"), nb::arg("memory"),
             "Decode the pages that were planned, all columns in one call; None for each of which one is wrong.");
  module.def("can_decompress", [](int64_t codec) { return can_decompress(static_cast<Codec>(codec)); },
             nb::arg("codec"), "Whether pages of a codec, a number of the format, are decompressed here.");
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
  module.def(
      "read_page_header",
      [](const Array<const uint8_t>& content) -> std::optional<Page> {
        Page page;
        if (!read_page_header(content, page)) return {};
        return page;
      },
      nb::arg("content"), "Return the header of the page at the beginning; None where there is no whole one.");
  module.def(
      "longest_string",
      [](const Array<const uint8_t>& content) {
        return without_lock(static_cast<int64_t>(content.size()) > kFewPlainBytes,
                            [&] { return longest_byte_array(content); });
      },
      nb::arg("content"), "Return how many bytes the longest string of a dictionary page has.");
  module.def(
      "sum_of_deltas",
      [](const Array<const uint8_t>& content) {
        return without_lock(static_cast<int64_t>(content.size()) > kFewPlainBytes, [&] { return sum_of_deltas(content); });
      },
      nb::arg("content"), "Return the sum of lengths that are encoded by their differences; -1 where they are none.");
}

}  // namespace

void bind_parquet(nb::module_& module) {
  bind_columns_of_pages(module);
  module.def(
      "read_footer",
      [](const Array<const uint8_t>& content, const Matrix<int64_t>& groups, const Array<int64_t, 3>& chunks) {
        static_assert(sizeof(GroupNumbers) == 2 * sizeof(int64_t) && sizeof(ChunkNumbers) == 16 * sizeof(int64_t));
        if (groups.shape(1) != 2 || chunks.shape(2) != 16 || groups.shape(0) != chunks.shape(0))
          throw std::invalid_argument("groups must be of shape [G, 2], chunks of shape [G, L, 16]");
        const std::span rows(reinterpret_cast<GroupNumbers*>(groups.data()), groups.shape(0));
        const std::span cells(reinterpret_cast<ChunkNumbers*>(chunks.data()), groups.shape(0) * chunks.shape(1));
        return without_lock(static_cast<int64_t>(content.size()) > kFewPlainBytes,
                            [&] { return read_footer(content, rows, cells); });
      },
      nb::arg("content"), nb::arg("groups"), nb::arg("chunks"),
      "Fill in what a footer says of its row groups and column chunks; False where it is corrupt.");
}

}  // namespace stoker
