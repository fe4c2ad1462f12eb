#include "../trace_events.h"

#include <nanobind/stl/tuple.h>

#include <stdexcept>

#include "bindings.h"

namespace stoker {
namespace {

// Returns the bytes up to `stop`, in which a reader that is at `at` goes on.
Bytes bytes_until(const Array<const uint8_t>& data, int64_t at, int64_t stop) {
  if (at < 0 || stop < at || stop > static_cast<int64_t>(data.size())) throw std::out_of_range("at or stop");
  return data.span().first(static_cast<size_t>(stop));
}

}  // namespace

void bind_trace_events(nb::module_& module) {
  nb::class_<TraceScanner> scanner(module, "TraceScanner", "Reads trace events, a row of integers each.");
  scanner.def(nb::init<>())
      .def("scan", [](TraceScanner& self, const Array<const uint8_t>& data, int64_t at, int64_t stop,
                      const Matrix<int64_t>& rows) {
             if (rows.shape(1) != kNumTraceColumns) throw std::invalid_argument("rows have another width");
             const Bytes bytes = bytes_until(data, at, stop);
             const TraceScanner::Found found = without_lock(true, [&] { return self.scan(bytes, at, rows.span()); });
             return std::tuple(found.num_rows, found.at, static_cast<int>(found.why));
           }, "data"_a, "at"_a, "stop"_a, "rows"_a,
           "Read events from data[at:stop], inside a JSON array; return how many rows were written, up to where all is "
           "read, and why it stopped: MORE, ENDED or ROWS_FULL.")
      .def("texts_from", [](const TraceScanner& self, size_t first) {
             nb::list texts;
             for (size_t i = first; i < self.texts().size(); ++i)
               texts.append(nb::bytes(self.texts()[i].data(), self.texts()[i].size()));
             return texts;
           }, "first"_a, nb::sig("def texts_from(self, first: int) -> list[bytes]"),
           "Return the texts from number `first` on, in UTF-8.")
      .def_prop_ro("num_damaged", &TraceScanner::num_damaged, "Events that made no sense.");
  const std::pair<const char*, int64_t> numbers[] = {
      {"MORE", TraceScanner::kMore}, {"ENDED", TraceScanner::kEnded}, {"ROWS_FULL", TraceScanner::kRowsFull},
      {"NUM_COLUMNS", kNumTraceColumns}, {"MISSING", kMissing}, {"TEXT", kText}};
  for (const auto& [name, number] : numbers) scanner.attr(name) = number;

  module.def("skip_json_value", [](const Array<const uint8_t>& data, int64_t at, int64_t stop) {
               return skip_value(bytes_until(data, at, stop), at);
             }, "data"_a, "at"_a, "stop"_a,
             "Return the place behind the JSON value at `at`; -1 where it does not end before `stop`, -2 where none begins.");
  module.def("find_trace_event", [](const Array<const uint8_t>& data, int64_t at, int64_t stop) {
               return find_event(bytes_until(data, at, stop), at);
             }, "data"_a, "at"_a, "stop"_a, "Return where the next event begins behind damage, or -1.");
  module.def("parse_microseconds", [](const Array<const uint8_t>& text) { return parse_ns(text.span()); }, "text"_a,
             "Return a number of microseconds, as JSON has it, as nanoseconds.");
}

}  // namespace stoker
