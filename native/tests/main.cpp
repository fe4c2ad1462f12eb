// native_tests [WORD]: runs every test, or those with WORD in their names.
#include <cstring>
#include <exception>

#include "check.h"

int main(int num_arguments, char** arguments) {
  const char* word = num_arguments > 1 ? arguments[1] : "";
  int passed = 0, failed = 0;
  for (const check::Test& test : check::tests()) {
    if (!std::strstr(test.name, word)) continue;
    try {
      test.run();
      ++passed;
      continue;
    } catch (const check::Failure&) {
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
    }
    std::fprintf(stderr, "FAILED: %s\n", test.name);
    ++failed;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed || !passed;
}
