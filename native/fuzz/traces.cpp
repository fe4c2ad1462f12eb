#include "trace_events.h"

#include <algorithm>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes = fuzz::Input(data, size).rest();
  const int64_t end = static_cast<int64_t>(bytes.size());
  MUST(stoker::skip_value(bytes, 0) <= end && stoker::find_event(bytes, 0) < std::max<int64_t>(end, 1));
  stoker::parse_ns(bytes);

  constexpr size_t kRows = 4;
  std::vector<int64_t> rows(kRows * stoker::kNumTraceColumns);
  stoker::TraceScanner scanner;
  for (int64_t at = 0;;) {
    const auto found = scanner.scan(bytes, at, rows);
    MUST(found.num_rows <= kRows && at <= found.at && found.at <= end);
    if (found.why != stoker::TraceScanner::kRowsFull) return 0;
    MUST(found.at > at);
    at = found.at;
  }
}
