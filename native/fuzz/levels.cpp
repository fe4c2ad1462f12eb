#include "parquet/values.h"

#include <algorithm>

#include "input.h"

namespace {

void read_flat(const std::vector<uint8_t>& bytes, int64_t num) {
  const stoker::parquet::Runs runs(bytes.data(), bytes.data() + bytes.size());
  std::vector<uint8_t> valid(static_cast<size_t>(num), 2);
  const int64_t num_there = stoker::parquet::read_flat_levels(runs, num, valid.data());
  MUST(stoker::parquet::read_flat_levels(runs, num, nullptr) == num_there);
  if (num_there >= 0) MUST(std::count(valid.begin(), valid.end(), 1) == num_there && std::ranges::max(valid) < 2);
}

void read_lists(const std::vector<uint8_t>& bytes, int64_t num, stoker::parquet::ListLevels levels, size_t split, size_t room) {
  const uint8_t *begin = bytes.data(), *middle = begin + split, *end = begin + bytes.size();
  const stoker::parquet::Runs repetition(begin, middle), definition(middle, end);
  std::vector<int64_t> offsets(room);
  int64_t row = 0, value = 0;
  if (!stoker::parquet::read_list_levels(repetition, definition, num, levels, offsets, row, value)) return;
  MUST(0 <= row && row < static_cast<int64_t>(std::max<size_t>(room, 1)) && 0 <= value && value <= num);
  MUST(std::is_sorted(offsets.begin(), offsets.begin() + row));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const int64_t num = 1 + input.below(256) + 256 * input.below(4);
  const int full = static_cast<int>(input.below(4)), empty = static_cast<int>(input.below(4)) - 1;
  const size_t split = input.below(256), room = input.below(256);
  const std::vector<uint8_t> bytes = input.rest();
  if (full == 0)
    read_flat(bytes, num);
  else
    read_lists(bytes, num, {full, empty}, std::min(split, bytes.size()), room);
  return 0;
}
