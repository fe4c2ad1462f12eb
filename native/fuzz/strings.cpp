#include "parquet/values.h"

#include <algorithm>
#include <numeric>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<int32_t> lengths(input.below(256));
  std::vector<uint8_t> bytes(input.below(256) + 256 * input.below(16));
  const std::vector<uint8_t> content = input.rest();
  const int64_t longest = stoker::parquet::longest_byte_array(content);
  MUST(0 <= longest && longest <= static_cast<int64_t>(content.size()));
  MUST(stoker::parquet::sum_of_deltas(content) >= -1);
  const uint8_t* end = content.data() + content.size();
  const int64_t num_bytes =
      stoker::parquet::split_byte_arrays({content.data(), end, end}, static_cast<int64_t>(lengths.size()),
                                         reinterpret_cast<uint8_t*>(lengths.data()), bytes);
  if (num_bytes < 0) return 0;
  MUST(num_bytes <= static_cast<int64_t>(bytes.size()));
  MUST(std::ranges::all_of(lengths, [&](int32_t length) { return length <= longest; }));
  MUST(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == num_bytes);

  // Where the page lies in the memory that they go to, they are the same.
  std::vector<uint8_t> both(16);
  both.insert(both.end(), content.begin(), content.end());
  std::vector<int32_t> again(lengths.size());
  end = both.data() + both.size();
  MUST(stoker::parquet::split_byte_arrays({both.data() + 16, end, end}, static_cast<int64_t>(again.size()),
                                          reinterpret_cast<uint8_t*>(again.data()), both) == num_bytes);
  MUST(again == lengths && std::equal(both.begin(), both.begin() + num_bytes, bytes.begin()));
  return 0;
}
