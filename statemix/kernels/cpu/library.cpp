// What the Python side asks of the library before it calls anything else.

#if defined(_WIN32)
#define STATEMIX_EXPORT extern "C" __declspec(dllexport)
#else
#define STATEMIX_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Raised with every change of a signature; the loader refuses a library of another version.
STATEMIX_EXPORT int statemix_abi_version() { return 1; }

// The widest instruction set that this processor runs, out of those the kernels are written for.
STATEMIX_EXPORT const char* statemix_instruction_set() {
#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
  return "generic";
}
