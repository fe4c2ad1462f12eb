#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "../parquet/decode.h"
#include "../parquet/footer.h"
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

struct Room {
  Array<uint8_t> bytes, values, valid;
  Array<int64_t> offsets;

  Target target() const { return {bytes, values, valid, offsets}; }
};

// Pages of one column chunk, or of what is there of it.
class Pages {
 public:
  explicit Pages(Array<const uint8_t> content) : content_(std::move(content)) {
    end_ = without_lock(static_cast<int64_t>(content_.size()) > kFewBytes,
                        [&] { return scan_pages(content_, pages_); });
  }

  size_t size() const { return pages_.size(); }
  int64_t end() const { return end_; }
  nb::object content() const { return content_.owner(); }

  const Page& at(size_t i) const {
    if (i >= pages_.size()) throw std::out_of_range("there is no such page");
    return pages_[i];
  }

  std::span<const Page> part(size_t first, std::optional<size_t> stop) const {
    const size_t end = std::min(stop.value_or(pages_.size()), pages_.size());
    if (first > end) throw std::out_of_range("there are no such pages");
    return std::span<const Page>(pages_).subspan(first, end - first);
  }

  // Returns behind which page there are so many entries, from page `first` on; all pages where there are fewer.
  size_t stop_for(size_t first, int64_t num_entries) const {
    size_t stop = first;
    for (int64_t num = 0; stop < pages_.size() && num < num_entries; ++stop)
      if (pages_[stop].kind != kDictionary) num += pages_[stop].num_entries;
    return stop;
  }

  // Returns how many pages are by a dictionary, those of values that stand first; none where the pages are not those
  // of strings: by a dictionary, if there is one, and once a writer has given it up, plain.
  std::optional<size_t> num_by_dictionary(size_t first, size_t stop) const {
    size_t num = 0;
    for (const Page& page : part(first, stop)) {
      if (page.kind == kDictionary) return {};
      if (is_by_dictionary(page.encoding)) {
        if (&page != &pages_[first + num]) return {};
        ++num;
      } else if (page.encoding != kPlain) {
        return {};
      }
    }
    return num;
  }

  bool decode(const Column& column, int64_t codec, const Room& room, Progress& progress, size_t first,
              std::optional<size_t> stop) const {
    const auto some = part(first, stop);
    return without_lock(totals_of(some).plain_bytes > kFewPlainBytes, [&] {
      return decode_pages(some, content_, static_cast<Codec>(codec), column, room.target(), progress);
    });
  }

  bool decode_plain(size_t i, const Array<const uint8_t>& content, const Column& column, const Room& room,
                    Progress& progress) const {
    return without_lock(at(i).plain_bytes > kFewPlainBytes,
                        [&] { return decode_plain_page(at(i), content, column, room.target(), progress); });
  }

 private:
  Array<const uint8_t> content_;
  std::vector<Page> pages_;
  int64_t end_ = 0;
};

int64_t split_byte_arrays(const Array<const uint8_t>& plain, const Array<int32_t>& lengths, const Array<uint8_t>& bytes) {
  Page page;
  page.plain_bytes = static_cast<int64_t>(plain.size());
  return without_lock(page.plain_bytes > kFewPlainBytes,
                      [&] { return split_page(page, plain, Codec::kUncompressed, lengths, bytes); });
}

void bind_pages(nb::module_& module) {
  nb::class_<Column>(module, "Column", "What the decoder of pages is to know of a column.")
      .def("__init__",
           [](Column* self, int64_t width, int full, int empty, bool is_list, bool is_bit, bool is_binary) {
             if (width < 1 || (is_binary && width != 4) || (is_bit && width != 1) || (is_list && (full < 1 || full > 3)))
               throw std::invalid_argument("there is no such column");
             new (self) Column{width, full, empty, is_list, is_bit, is_binary};
           },
           nb::arg("width"), nb::arg("full"), nb::arg("empty"), nb::arg("is_list"), nb::arg("is_bit"),
           nb::arg("is_binary"))
      .def_ro("width", &Column::width)
      .def_ro("is_list", &Column::is_list)
      .def_ro("is_bit", &Column::is_bit)
      .def_ro("is_binary", &Column::is_binary)
      .def_prop_ro("may_be_null", [](const Column& self) { return self.full > 0; });
  nb::class_<Page>(module, "Page", "What the header of a page says.")
      .def_ro("at", &Page::at)
      .def_ro("stored_bytes", &Page::stored_bytes)
      .def_ro("plain_bytes", &Page::plain_bytes)
      .def_prop_ro("level_bytes", &Page::level_bytes)
      .def_ro("num_entries", &Page::num_entries)
      .def_prop_ro("is_plain", [](const Page& self) { return self.encoding == kPlain || self.encoding == kPlainDictionary; })
      .def_ro("checksum", &Page::checksum)
      .def_ro("is_packed", &Page::is_packed)
      .def_prop_ro("is_dictionary", [](const Page& self) { return self.kind == kDictionary; });
  nb::class_<PageTotals>(module, "PageTotals", "What is to be known of some pages before they are decoded.")
      .def_ro("num_entries", &PageTotals::num_entries)
      .def_ro("num_dictionary_values", &PageTotals::num_dictionary_values)
      .def_ro("most_bytes", &PageTotals::most_bytes)
      .def_ro("plain_bytes", &PageTotals::plain_bytes)
      .def_ro("has_checksums", &PageTotals::has_checksums)
      .def_ro("is_packed", &PageTotals::is_packed);
  nb::class_<Progress>(module, "Progress", "How far a column chunk is decoded.")
      .def(nb::init<>())
      .def_rw("rows", &Progress::rows)
      .def_rw("values", &Progress::values)
      .def_rw("nulls", &Progress::nulls)
      .def_rw("dictionary_values", &Progress::dictionary_values)
      .def_rw("string_bytes", &Progress::string_bytes);
  nb::class_<Room>(module, "Room", "Arrays that values go to: uint8, uint8, uint8 and int64.")
      .def("__init__",
           [](Room* self, Array<uint8_t> bytes, Array<uint8_t> values, Array<uint8_t> valid, Array<int64_t> offsets) {
             new (self) Room{std::move(bytes), std::move(values), std::move(valid), std::move(offsets)};
           },
           nb::arg("bytes"), nb::arg("values"), nb::arg("valid"), nb::arg("offsets"));
  nb::class_<Pages>(module, "Pages", "The pages that lie one behind the other in `content` as a whole.")
      .def("__init__", [](Pages* self, Array<const uint8_t> content) { new (self) Pages(std::move(content)); },
           nb::arg("content"))
      .def("__len__", &Pages::size)
      .def("__getitem__", &Pages::at)
      .def_prop_ro("content", &Pages::content, nb::sig("def content(self) -> numpy.typing.NDArray[numpy.uint8]"))
      .def_prop_ro("end", &Pages::end)
      .def("totals", [](const Pages& self, size_t first, std::optional<size_t> stop) {
             return totals_of(self.part(first, stop));
           },
           nb::arg("first") = 0, nb::arg("stop") = nb::none())
      .def("stop_for", &Pages::stop_for, nb::arg("first"), nb::arg("num_entries"))
      .def("num_by_dictionary", &Pages::num_by_dictionary, nb::arg("first"), nb::arg("stop"))
      .def("decode", &Pages::decode, nb::arg("column"), nb::arg("codec"), nb::arg("room"), nb::arg("progress"),
           nb::arg("first") = 0, nb::arg("stop") = nb::none(),
           "Decode pages behind what is decoded; False where one is not as it should be, or not known.")
      .def("decode_plain", &Pages::decode_plain, nb::arg("i"), nb::arg("content"), nb::arg("column"), nb::arg("room"),
           nb::arg("progress"), "Decode a page that was decompressed before.");
  module.def("split_byte_arrays", &split_byte_arrays, nb::arg("plain"), nb::arg("lengths"), nb::arg("bytes"),
             "Take a page of byte arrays apart; return how many bytes they have, -1 where they are cut short.");
  module.def("can_decompress", [](int64_t codec) { return can_decompress(static_cast<Codec>(codec)); },
             nb::arg("codec"), "Whether pages of a codec, a number of the format, are decompressed here.");
  module.def("decompress",
             [](int64_t codec, const Array<const uint8_t>& packed, const Array<uint8_t>& out) {
               return without_lock(static_cast<int64_t>(out.size()) > kFewPlainBytes,
                                   [&] { return decompress(static_cast<Codec>(codec), packed, out); });
             },
             nb::arg("codec"), nb::arg("packed"), nb::arg("out"),
             "Fill `out` with what was compressed; False where that is not exactly as long.");
  module.def("read_page_header",
             [](const Array<const uint8_t>& content) -> std::optional<Page> {
               Page page;
               if (!read_page_header(content, page)) return {};
               return page;
             },
             nb::arg("content"), "Return the header of the page at the beginning; None where it is none, or cut short.");
}

// The column chunks of a row group, with their bytes.
class Chunks {
 public:
  using Size = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  // Whether a column was decoded; its values and nulls; where its values, validity and offsets begin.
  using Outcome = std::tuple<bool, int64_t, int64_t, int64_t, int64_t, int64_t>;

  Chunks(Array<const uint8_t> content, const Array<const int64_t>& borders)
      : content_(std::move(content)), chunks_(content_, borders) {}

  std::optional<Size> lay_out(std::vector<Column> columns, int64_t num_rows, const Array<const int64_t>& num_values,
                              const Array<const int64_t>& most_bytes) {
    if (!chunks_.lay_out(std::move(columns), num_rows, num_values, most_bytes)) return {};
    const auto [bytes, values, valid, offsets] = chunks_.size();
    return Size{bytes, values, valid, offsets};
  }

  std::vector<Outcome> decode(int64_t codec, const Room& room) const {
    const auto found = without_lock(chunks_.size().values > kFewPlainBytes, [&] {
      return chunks_.decode(static_cast<Codec>(codec), room.target());
    });
    std::vector<Outcome> outcomes;
    for (const auto& [is_done, progress, begin] : found)
      outcomes.emplace_back(is_done, progress.values, progress.nulls, begin.values, begin.valid, begin.offsets);
    return outcomes;
  }

 private:
  Array<const uint8_t> content_;
  ColumnChunks chunks_;
};

}  // namespace

void bind_parquet(nb::module_& module) {
  bind_pages(module);
  nb::class_<Chunks>(module, "ColumnChunks", "Column chunks that lie one behind the other, to be decoded all at once.")
      .def("__init__",
           [](Chunks* self, Array<const uint8_t> content, const Array<const int64_t>& borders) {
             new (self) Chunks(std::move(content), borders);
           },
           nb::arg("content"), nb::arg("borders"))
      .def("lay_out", &Chunks::lay_out, nb::arg("columns"), nb::arg("num_rows"), nb::arg("num_values"),
           nb::arg("most_bytes"),
           "Return how much room bytes, values, validity and offsets take; None where each must be tried by itself.")
      .def("decode", &Chunks::decode, nb::arg("codec"), nb::arg("room"),
           "Return of each column: is it decoded, its values and nulls, where values, validity and offsets begin.");
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
