#include "parquet/codecs.h"

#include "input.h"

using stoker::parquet::Codec, stoker::parquet::decompress;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t num_bytes = input.below(256) + 256 * input.below(64);
  const std::vector<uint8_t> packed = input.rest();
  std::vector<uint8_t> out(num_bytes, 1), other(num_bytes, 2);
  const bool is_whole = decompress(Codec::kSnappy, packed, out);
  MUST(decompress(Codec::kSnappy, packed, other) == is_whole);
  if (is_whole) MUST(out == other);  // no byte is left as it was
  return 0;
}
