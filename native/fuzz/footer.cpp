#include "parquet/metadata.h"

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t num_groups = input.below(8), num_columns = input.below(16);
  std::vector<stoker::parquet::GroupNumbers> groups(num_groups);
  std::vector<stoker::parquet::ChunkNumbers> chunks(num_groups * num_columns);
  stoker::parquet::read_footer(input.rest(), groups, chunks);
  return 0;
}
