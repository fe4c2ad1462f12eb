#include "parquet/metadata.h"

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> content = fuzz::Input(data, size).rest();
  std::vector<stoker::parquet::Page> pages;
  const int64_t end = stoker::parquet::scan_pages(content, pages);
  int64_t at = 0;
  for (const stoker::parquet::Page& page : pages) {
    MUST(page.at > at && page.stored_bytes >= 0 && page.plain_bytes >= 0 && page.num_entries >= 0);
    MUST(page.definition_bytes >= 0 && page.repetition_bytes >= 0 && page.level_bytes() <= page.stored_bytes);
    at = page.at + page.stored_bytes;
  }
  MUST(at == end && end <= static_cast<int64_t>(content.size()));
  // The header that callers look at by itself is the one that was found, or of a page that is none.
  stoker::parquet::Page first;
  const bool is_header = stoker::parquet::read_page_header(content, first);
  if (is_header) MUST(0 < first.at && first.at <= static_cast<int64_t>(content.size()));
  if (pages.empty()) return 0;
  MUST(is_header && first.at == pages[0].at && first.stored_bytes == pages[0].stored_bytes && !is_inflated(first));
  return 0;
}
