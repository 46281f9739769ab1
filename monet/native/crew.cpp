// Calls a function on each of the other threads that the calling thread's parallel loops run on.
//
// On GNU's runtime these are always the same ones, and they work for no other thread. LLVM's lends
// them to any thread, so there nothing is called: what they ask for is then served by PyTorch.
#include <dlfcn.h>
#include <omp.h>

extern "C" void monet_for_each_worker(int threads, void (*function)(void*), void* argument) {
  static const bool lent = dlsym(RTLD_DEFAULT, "__kmpc_fork_call") != nullptr;
  if (lent || threads < 2 || omp_in_parallel()) return;
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() != 0) function(argument);
}
