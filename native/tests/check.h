// What the native tests are written with: TEST("a sentence") { CHECK(...); CHECK_EQUAL(a, b); }
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using Bytes = std::vector<uint8_t>;

// The same in every run.
inline std::mt19937_64 generator(7);

// Bytes without a pattern.
inline Bytes noise(size_t num_bytes) {
  Bytes bytes(num_bytes);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
  return bytes;
}

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline bool add(const char* name, void (*run)()) {
  tests().push_back({name, run});
  return true;
}

// The first failure ends the test: what follows would only repeat it, or read what is not there.
struct Failure {};

inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  throw Failure{};
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* a_text, const char* b_text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream what;
  what << a_text << " == " << b_text;
  if constexpr (requires { what << a << b; }) what << ", but " << a << " != " << b;
  fail(file, line, what.str());
}

}  // namespace check

#define CHECK_JOIN2(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN2(a, b)

#define TEST(name)                                                                                              \
  static void CHECK_JOIN(test_, __LINE__)();                                                                    \
  [[maybe_unused]] static const bool CHECK_JOIN(added_, __LINE__) = check::add(name, CHECK_JOIN(test_, __LINE__)); \
  static void CHECK_JOIN(test_, __LINE__)()

#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_EQUAL(a, b) check::equal((a), (b), #a, #b, __FILE__, __LINE__)

#define CHECK_THROWS(expression, exception)                                                 \
  do {                                                                                      \
    bool thrown = false;                                                                    \
    try {                                                                                   \
      static_cast<void>(expression);                                                        \
    } catch (const exception&) {                                                            \
      thrown = true;                                                                        \
    }                                                                                       \
    if (!thrown) check::fail(__FILE__, __LINE__, #expression " does not throw " #exception); \
  } while (false)
