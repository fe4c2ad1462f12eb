#include "permutation.h"

#include <algorithm>
#include <cinttypes>
#include <fstream>
#include <numeric>

#include "check.h"

namespace {

std::vector<int64_t> permuted(const std::vector<int64_t>& index, uint64_t size, uint64_t key, int64_t start = 0) {
  std::vector<int64_t> out(index.size());
  stoker::permute(index, start, size, key, out);
  return out;
}

std::vector<int64_t> count_from(int64_t start, size_t size) {
  std::vector<int64_t> values(size);
  std::iota(values.begin(), values.end(), start);
  return values;
}

// Reads `"name": [1, 2, 3]` of a line of JSON.
std::vector<int64_t> numbers(const std::string& line, const std::string& name) {
  std::vector<int64_t> values;
  std::istringstream text(line.substr(line.find("\"" + name + "\": [") + name.size() + 5));
  char after = ',';
  for (int64_t value; after == ',' && text >> value >> after;) values.push_back(value);
  return values;
}

}  // namespace

TEST("permutations are those of the golden file") {
  std::ifstream golden(STOKER_GOLDEN "/order.json");
  int num_seen = 0;
  for (std::string line; std::getline(golden, line);) {
    uint64_t size, key;
    if (std::sscanf(line.c_str(), " {\"size\": %" SCNu64 ", \"key\": \"0x%" SCNx64 "\"", &size, &key) != 2) continue;
    CHECK(permuted(numbers(line, "index"), size, key) == numbers(line, "place"));
    ++num_seen;
  }
  CHECK(num_seen > 50);
}

TEST("every value of a permutation occurs once") {
  for (const size_t size : {1, 2, 3, 31, 32, 33, 255, 256, 257, 511, 513, 1000, 4097, 65536, 100003}) {
    std::vector<int64_t> out = permuted(count_from(0, size), size, 0x9E3779B97F4A7C15 * size);
    if (size > 255) CHECK(!std::is_sorted(out.begin(), out.end()));
    std::sort(out.begin(), out.end());
    CHECK(out == count_from(0, size));
  }
}

TEST("a permutation counts from its start, and a part of it is what it is in the whole") {
  const std::vector<int64_t> whole = permuted(count_from(0, 5000), 5000, 7);
  const std::vector<int64_t> part = permuted(count_from(1000 + 123, 100), 5000, 7, 1000);
  for (size_t i = 0; i < part.size(); ++i) CHECK_EQUAL(part[i], whole[123 + i] + 1000);
}

TEST("no index asks for no place") { CHECK(permuted({}, 1000, 1).empty()); }

TEST("sizes up to 2^62 are permuted") {
  const uint64_t size = uint64_t{1} << 62;
  const std::vector<int64_t> out = permuted({0, 1, static_cast<int64_t>(size - 1)}, size, 3);
  for (const int64_t value : out) CHECK(value >= 0 && static_cast<uint64_t>(value) < size);
}
