// A CUDA allocator in front of PyTorch's: it serves planned requests from an arena and records what an operator asks
// for, as allocator.cpp does on the CPU. Everything else goes to PyTorch's allocator as it is: all other calls, other
// threads, other devices, other streams, and what is not as planned.
//
// program.h says which planned request one is, cuda_arena.h has arenas, streams and graphs, cuda_forwarding.h what is
// passed on, recorder.h what is recorded; here are the allocator that asks all of them, and the functions that Python
// calls: their names are those of allocator.cpp. Those that can fail return what Python looks for in monet_error().
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "cuda_arena.h"
#include "cuda_forwarding.h"
#include "recorder.h"

namespace {

// The step that a thread is in, and the stream that it runs on.
struct Session : Cursor {
  Program* program = nullptr;
  cudaStream_t stream = nullptr;
};
thread_local Session session;

// Blocks of PyTorch's allocator that a recording saw.
struct Recorded {
  uint64_t recording;
  int64_t index;
};
auto& recorded = *new std::unordered_map<const void*, Recorded>;
std::atomic<int64_t> recorded_count{0};

void note_request(const void* pointer, size_t n) {
  std::lock_guard<std::mutex> lock(mutex);
  const int64_t index = recorder->requests++;
  recorded[pointer] = {recorder->number, index};
  recorded_count.store(static_cast<int64_t>(recorded.size()));
  recorder->events.push_back({index, static_cast<int64_t>(n), reinterpret_cast<int64_t>(pointer)});
}

void note_release(const void* pointer) {
  if (recorded_count.load() == 0) return;
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = recorded.find(pointer);
  if (found == recorded.end()) return;
  if (recorder != nullptr && found->second.recording == recorder->number)
    recorder->events.push_back({found->second.index, -1, 0});
  recorded.erase(found);
  recorded_count.store(static_cast<int64_t>(recorded.size()));
}

// The deleter of what was requested during a recording.
void release_recorded(void* pointer) {
  note_release(pointer);
  previous->raw_delete(pointer);
}

// Frees what is served at this address, if anything is. The caller holds the mutex.
bool release_served(const void* pointer, Later& later) {
  const auto found = blocks.find(pointer);
  if (found == blocks.end()) return false;
  const Block& block = *found->second;
  if (session.program != nullptr && session.program->home->range == block.range)
    session.freed(*session.program, block.offset);
  take_back(found, later);
  return true;
}

// The deleter of planned tensors.
void release_block(void* pointer) {
  Later later;
  {
    std::lock_guard<std::mutex> lock(mutex);
    release_served(pointer, later);
  }
  later.run();
}

// The place of this request, of n bytes on a stream, where the plan has one.
char* serve(size_t n, cudaStream_t stream) {
  Program& program = *session.program;
  Range* range = program.home->range;
  if (c10::cuda::current_device() != program.device || stream != session.stream) {
    count_miss(program, session, n, -1);
    return nullptr;
  }
  const int64_t request = next_request(program, session, n);
  if (request < 0 || program.offsets[request] < 0) return nullptr;
  TORCH_CHECK(range != nullptr, "a planned step runs without its arena");
  std::lock_guard<std::mutex> lock(mutex);
  settle(*range);
  ++program.served;
  return lend(*range, program.offsets[request], program.leaves[request] != 0);
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

class PlannedAllocator final : public Forwarding {
 public:
  DataPtr allocate(size_t n) override {
    if (n == 0) return previous->allocate(n);
    if (session.program != nullptr) {
      if (char* at = serve(n, current_stream()))
        return {at, at, &release_block, c10::Device(c10::DeviceType::CUDA, session.program->device)};
    }
    DataPtr made = previous->allocate(n);
    // Its own deleter stays, which PyTorch's allocator knows its blocks by; but a recording has to hear of the release.
    if (recorder != nullptr && made.get() != nullptr) {
      const c10::Device device = made.device();
      note_request(made.get(), n);
      void* at = made.release_context();
      return {at, at, &release_recorded, device};
    }
    return made;
  }

  void* raw_alloc(size_t n) override {
    if (void* at = raw_serve(n, nullptr)) return at;
    return raw_noted(previous->raw_alloc(n), n);
  }
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override {
    if (void* at = raw_serve(n, &stream)) return at;
    return raw_noted(previous->raw_alloc_with_stream(n, stream), n);
  }
  void raw_delete(void* pointer) override {
    Later later;
    bool is_ours = false;
    {
      std::lock_guard<std::mutex> lock(mutex);
      is_ours = release_served(pointer, later);
      TORCH_CHECK(is_ours || range_of(pointer) == nullptr, "an address of a plan's arena is freed, ", pointer,
                  ", where nothing is allocated: it was freed already");
    }
    later.run();
    if (is_ours) return;
    note_release(pointer);
    previous->raw_delete(pointer);
  }

  using Forwarding::recordStream;
  void recordStream(const DataPtr& pointer, CUDAStream stream) override {
    if (pointer.get_deleter() == &release_block) {
      Later later;
      {
        std::lock_guard<std::mutex> lock(mutex);
        Block* block = blocks.find(pointer.get_context())->second;
        Range& range = *block->range;
        TORCH_CHECK(stream.device_index() == range.device, "record_stream: a tensor of a plan's arena on cuda:",
                    static_cast<int>(range.device), " is used on a stream of cuda:",
                    static_cast<int>(stream.device_index()), "; give that device a copy (tensor.to(device))");
        if (stream == range.stream) return;
        make_known(range, stream, later);
        add(block->streams, stream);
      }
      later.run();
    } else if (pointer.get_deleter() == &release_recorded) {
      record_plainly(pointer.get(), pointer.device(), stream);
    } else {
      previous->recordStream(pointer, stream);
    }
  }

  // What is asked about an address of an arena is answered by what PyTorch's allocator says of the arena.
  void* getBaseAllocation(void* pointer, size_t* size) override {
    return previous->getBaseAllocation(start_of(pointer), size);
  }
  native::ShareableHandle shareIpcHandle(void* pointer) override {
    void* start = start_of(pointer);
    native::ShareableHandle handle = previous->shareIpcHandle(start);
    handle.offset += static_cast<char*>(pointer) - static_cast<char*>(start);
    return handle;
  }

#if MONET_SINCE(2, 12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    return previous->getContextForPointer(start_of(const_cast<void*>(pointer)));
  }
#endif

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    previous->beginAllocateToPool(device, pool, filter);
    std::lock_guard<std::mutex> lock(mutex);
    captures.push_back({device, pool, std::move(filter)});
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    {
      std::lock_guard<std::mutex> lock(mutex);
      const auto ended = std::find_if(captures.begin(), captures.end(), [&](const Capture& capture) {
        return capture.device == device && capture.pool == pool;
      });
      if (ended != captures.end()) captures.erase(ended);
    }
    previous->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    previous->releasePool(device, pool);
    // Graphs that share a pool release it one by one; only with the last one is nothing replayed any more.
    if (!is_of_arena(device, pool) || previous->getPoolUseCount(device, pool) > 0) return;
    Later later;
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (auto at = ranges.begin(); at != ranges.end();) {
        Range& range = *(at++)->second;  // which may end here
        if (range.device == device && range.graphs.erase(pool) != 0) end_if_unused(range, later);
      }
    }
    later.run();
  }

 private:
  static bool is_of_arena(DeviceIndex device, MempoolId_t pool) {
    std::lock_guard<std::mutex> lock(mutex);
    return std::any_of(ranges.begin(), ranges.end(), [&](const auto& entry) {
      return entry.second->device == device && entry.second->graphs.count(pool) != 0;
    });
  }
  // The arena's first address for one inside, else the address.
  static void* start_of(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    const Range* range = range_of(pointer);
    return range == nullptr ? pointer : range->base;
  }
  static void* raw_serve(size_t n, const cudaStream_t* stream) {
    if (n == 0 || session.program == nullptr) return nullptr;
    return serve(n, stream == nullptr ? current_stream() : *stream);
  }
  static void* raw_noted(void* at, size_t n) {
    if (recorder != nullptr && at != nullptr) note_request(at, n);
    return at;
  }
};

PlannedAllocator& planned_allocator() {
  static auto* one = new PlannedAllocator;  // never destroyed: storages know it until the process ends
  return *one;
}

constexpr uint8_t highest_priority = 255;  // one of a lower priority than what is there would be ignored

// Behind PyTorch's operators, and behind c10::GetAllocator, which older storages and torch.accelerator ask.
void put_in_place(CUDAAllocator* from, CUDAAllocator* to) {
  native::allocator.store(to);
  if (c10::GetAllocator(c10::kCUDA) == from) c10::SetAllocator(c10::kCUDA, to, highest_priority);
}

thread_local std::string last_error;
thread_local bool out_of_memory = false;

// The result of what Python asks for; `failed`, with the reason kept, where it throws.
template <class Result, class Function>
Result guarded(Result failed, Function function) {
  last_error.clear();
  out_of_memory = false;
  try {
    return function();
  } catch (const c10::OutOfMemoryError& error) {
    out_of_memory = true;
    last_error = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return failed;
}

}  // namespace

extern "C" {

// Why the last call of this thread failed, or "".
const char* monet_error() { return last_error.c_str(); }
int monet_error_is_memory() { return out_of_memory; }

int monet_install() {
  return guarded(1, [] {
    std::lock_guard<std::mutex> lock(mutex);
    CUDAAllocator* now = native::allocator.load();
    if (now == &planned_allocator()) return 0;
    TORCH_CHECK(now != nullptr, "PyTorch has no CUDA allocator");
    TORCH_CHECK(ranges.empty(), "arenas are served for another allocator");
    previous = now;
    put_in_place(previous, &planned_allocator());
    return 0;
  });
}

// PyTorch's own allocator is the one again. Refused while an arena has memory: what lies there is freed by ours.
int monet_uninstall() {
  return guarded(1, [] {
    std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(ranges.empty(), ranges.size(), " arenas still have memory; let go of the planned modules, of their "
                "results and of graphs that replay them");
    if (previous == nullptr) return 0;
    CUDAAllocator* ours = &planned_allocator();
    TORCH_CHECK(native::allocator.load() == ours, "something has put another CUDA allocator in front of monet's");
    put_in_place(ours, previous);
    return 0;
  });
}

// As on the CPU, where also other threads are served: a kernel here asks on the thread that runs the step.
Program* monet_program_create(int64_t steps, const int64_t* step_begin, const int64_t* sizes, const int64_t* offsets,
                              const int64_t* leaves, int64_t arena_bytes, int, const int64_t*, const int64_t*) {
  auto* program = new Program(steps, step_begin, sizes, offsets, leaves);
  program->arena_bytes = arena_bytes;
  return program;
}

// Between two steps: other sizes of the same requests. upper: 1 for a request that may be for less than its size.
void monet_program_resize(Program* program, const int64_t* sizes, const int64_t* upper) {
  const size_t count = program->sizes.size();
  program->sizes.assign(sizes, sizes + count);
  program->upper.assign(upper, upper + count);
}

void monet_program_device(Program* program, int device) { program->device = static_cast<DeviceIndex>(device); }

// Programs that share an arena are mapped and entered by one thread at a time.
int monet_arena_map(Program* program) {
  return guarded(1, [&] {
    if (program->home->range != nullptr || program->arena_bytes == 0) return 0;
    TORCH_CHECK(native::allocator.load() == &planned_allocator(), "monet's CUDA allocator is not installed any more");
    std::unique_ptr<Range> range = reserve(program->device, program->arena_bytes);
    std::lock_guard<std::mutex> lock(mutex);
    program->home->range = enter_range(std::move(range));
    program->owner = true;
    return 0;
  });
}

// Before a step: the arena is there, and nothing that an earlier step made is held inside. Where something is, that
// memory is left to whoever holds it, and the arena is elsewhere. Returns the bytes that are left, -1 for an error.
int64_t monet_arena_ready(Program* program) {
  if (monet_arena_map(program) != 0) return -1;
  return guarded(int64_t{-1}, [&]() -> int64_t {
    Range* old = program->home->range;
    if (old == nullptr) return 0;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (old->leaving == 0) return 0;
    }
    const int64_t left = old->bytes;
    std::unique_ptr<Range> range = reserve(program->device, left);
    Later later;
    {
      std::lock_guard<std::mutex> lock(mutex);
      program->home->range = enter_range(std::move(range));
      orphan(*old, later);
    }
    later.run();
    return left;
  });
}

void monet_arena_unmap(Program* program) {
  guarded(1, [&] {
    if (!program->owner) return 0;
    Later later;
    {
      std::lock_guard<std::mutex> lock(mutex);
      program->owner = false;
      Range* range = program->home->range;
      program->home->range = nullptr;
      orphan(*range, later);
    }
    later.run();
    return 0;
  });
}

void monet_arena_share(Program* program, const Program* owner) { program->home = owner->home; }

int64_t monet_arena_base(const Program* program) {
  return program->home->range == nullptr ? 0 : reinterpret_cast<int64_t>(program->home->range->base);
}

void monet_program_destroy(Program* program) {
  monet_arena_unmap(program);
  delete program;
}

int monet_enter(Program* program, int64_t step) {
  return guarded(1, [&] {
    const CUDAStream stream = c10::cuda::getCurrentCUDAStream(program->device);
    if (Range* range = program->home->range) {
      Later later;
      {
        std::lock_guard<std::mutex> lock(mutex);
        follow(*range, stream, later);
        keep_for_graphs(*range, stream);
      }
      later.run();
    }
    session.enter(*program, step);
    session.stream = stream.stream();
    session.program = program;
    return 0;
  });
}

void monet_leave() { session.program = nullptr; }

void monet_statistics(const Program* program, int64_t* out) { read_statistics(*program, out); }

void monet_record_begin() { begin_recording(); }

// The number of events. crew: of other threads, which ask for nothing here.
int64_t monet_record_end(int64_t* crew) {
  crew[0] = crew[1] = 0;
  return recorded_events();
}

void monet_record_read(int64_t* out) { read_recording(out); }

}  // extern "C"
