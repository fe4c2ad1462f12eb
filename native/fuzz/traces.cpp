#include "trace_events.h"

#include <algorithm>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t block = 1 + input.below(64);
  const std::vector<uint8_t> bytes = input.rest();
  stoker::TraceScanner scanner;
  for (size_t at = 0; at <= bytes.size(); at += block) {
    const size_t num = std::min(block, bytes.size() - at);
    scanner.feed(stoker::Bytes(bytes).subspan(at, num), at + block > bytes.size());
    MUST(scanner.rows().size() % stoker::kNumTraceColumns == 0);
  }
  MUST(scanner.num_damaged() <= static_cast<int64_t>(bytes.size()));
  return 0;
}
