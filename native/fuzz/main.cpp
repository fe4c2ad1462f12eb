// Runs a fuzz target without a fuzzer: over each file of the folders that are named, and over some changes of each.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "input.h"

namespace {

constexpr int kChanges = 200;

uint32_t draw(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

// Flips bits, writes bytes over others, or cuts the end.
void change(std::vector<uint8_t>& bytes, uint64_t& state) {
  for (uint32_t n = draw(state) % 4 + 1; n && !bytes.empty(); --n) {
    uint8_t& byte = bytes[draw(state) % bytes.size()];
    switch (draw(state) % 4) {
      case 0: byte = static_cast<uint8_t>(byte ^ (1u << draw(state) % 8)); break;
      case 1: byte = static_cast<uint8_t>(draw(state)); break;
      case 2: byte = draw(state) % 2 ? 0xFF : 0; break;
      default: if (draw(state) % 4 == 0) bytes.resize(draw(state) % bytes.size());
    }
  }
}

}  // namespace

int main(int num_arguments, char** arguments) {
  size_t num_files = 0;
  for (int i = 1; i < num_arguments; ++i) {
    if (!std::filesystem::is_directory(arguments[i])) continue;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(arguments[i])) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      std::ifstream file(path, std::ios::binary);
      const std::vector<uint8_t> seed{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(seed.data(), seed.size());
      uint64_t state = ++num_files;
      for (int n = 0; n < kChanges; ++n) {
        std::vector<uint8_t> bytes = seed;
        change(bytes, state);
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      }
    }
  }
  std::printf("%s: %zu seeds, %d changes of each\n", arguments[0], num_files, kChanges);
  return num_files == 0;
}
