// One function, compiled for several levels of the same processor family; the loader picks the best one once.
#pragma once

// x86-64-v2 is the least that is run on, v3 has AVX2, v4 has AVX-512. On AArch64, NEON is always there.
// Sanitizers stop in the resolvers of such functions, which run before they are ready themselves; macOS has none.
#if defined(__x86_64__) && defined(__linux__) && !defined(STOKER_ONE_VERSION)
#define STOKER_VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STOKER_VERSIONS
#endif

// What such a function calls must be compiled into it, or it is compiled for the least processor only. It may not make,
// move or destroy objects of classes in an anonymous namespace, nor go through a span by its iterators: clang 22 leaves
// their constructors out of the library.
#define STOKER_INLINE inline __attribute__((always_inline))
