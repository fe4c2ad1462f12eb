#include "parquet/decode.h"

#include <numeric>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<int32_t> lengths(input.below(256));
  std::vector<uint8_t> bytes(input.below(256) + 256 * input.below(16));
  const std::vector<uint8_t> content = input.rest();
  stoker::parquet::Page page;
  page.plain_bytes = static_cast<int64_t>(content.size());
  const int64_t num_bytes = stoker::parquet::split_page(page, content, stoker::parquet::Codec::kUncompressed, lengths, bytes);
  if (num_bytes < 0) return 0;
  MUST(num_bytes <= static_cast<int64_t>(bytes.size()));
  MUST(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == num_bytes);
  return 0;
}
