#include "../trace_events.h"

#include "bindings.h"

namespace stoker {

void bind_trace_events(nb::module_& module) {
  nb::class_<TraceScanner> scanner(module, "TraceScanner", "Reads a Chrome trace, a row of integers an event.");
  scanner.def(nb::init<>())
      .def("feed", [](TraceScanner& self, std::span<const uint8_t> block, bool is_last) {
             without_lock(true, [&] { self.feed(block, is_last); });
             return nb::bytes(reinterpret_cast<const char*>(self.rows().data()), self.rows().size() * sizeof(int64_t));
           }, "block"_a, "is_last"_a,
           "Take the next bytes of a file; return the rows of the events that end in them: int64 [N, NUM_COLUMNS].")
      .def("texts_from", [](const TraceScanner& self, size_t first) {
             nb::list texts;
             for (size_t i = first; i < self.texts().size(); ++i)
               texts.append(nb::bytes(self.texts()[i].data(), self.texts()[i].size()));
             return texts;
           }, "first"_a, nb::sig("def texts_from(self, first: int) -> list[bytes]"),
           "Return the texts from number `first` on, in UTF-8.")
      .def_prop_ro("header", [](const TraceScanner& self) {
             nb::dict header;
             for (const auto& [key, json] : self.header()) header[key.c_str()] = nb::bytes(json.data(), json.size());
             return header;
           }, nb::sig("def header(self) -> dict[str, bytes]"), "JSON of the members beside the events that are of use.")
      .def_prop_ro("is_none", &TraceScanner::is_none, "Whether what begins the file is no JSON object or array.")
      .def_prop_ro("has_begun", &TraceScanner::has_begun, "Whether there was anything but white space.")
      .def_prop_ro("has_events", &TraceScanner::has_events, "Whether the array of events was found.")
      .def_prop_ro("has_end", &TraceScanner::has_end,
                   "Whether all was read up to the end; that of a bare array is optional, for writers that cannot end cleanly.")
      .def_prop_ro("num_damaged", &TraceScanner::num_damaged, "Events that made no sense.")
      .def_prop_ro("num_beyond", &TraceScanner::num_beyond, "Events whose time is too large for microseconds.");
  scanner.attr("NUM_COLUMNS") = static_cast<int64_t>(kNumTraceColumns);
  scanner.attr("MISSING") = kMissing;
  scanner.attr("TEXT") = kText;
}

}  // namespace stoker
