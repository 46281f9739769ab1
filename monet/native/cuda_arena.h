// Arenas on a GPU: the block of device memory that planned requests are served from, on one stream at a time.
//
// The block is one allocation of PyTorch's own allocator, so its statistics, its snapshot and its peak have the arena
// as a whole. Places inside are used again in the order of the stream that the step runs on, as PyTorch's allocator
// uses blocks of a stream again. Where another stream comes in, by recordStream or by a step on another stream, an
// event orders the two before memory is used again; where none can, while a graph is captured, it is an error.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program.h"

namespace {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

CUDAAllocator* previous = nullptr;  // PyTorch's own

// None of these is ever destroyed: tensors may be freed when the process ends, after the library's own ending.
//
// Held while arenas or blocks change. PyTorch's allocator is never called under it: that one has a lock of its own, under
// which it may free tensors of ours when memory is short (its FreeMemoryCallback), and may ask for Python's lock (memory
// history), which a thread that waits for this one may have.
std::mutex& mutex = *new std::mutex;

struct Range {
  DeviceIndex device;
  char* base;
  int64_t bytes;
  CUDAStream stream;              // of the last step here; at first, the one that the memory comes on
  std::vector<CUDAStream> known;  // that PyTorch's allocator waits for before it takes the memory back
  std::vector<CUDAStream> owed{};  // that used blocks which are free by now: to be waited for
  int64_t blocks = 0;             // that somebody holds
  int64_t leaving = 0;            // of these, those that may outlive their step
  bool orphaned = false;          // its owner is gone: it ends with its last block and its last graph
  std::set<MempoolId_t> graphs{};  // memory pools of graphs that replay steps in it
  bool forever = false;           // a graph of unknown pool does
};
using Ranges = std::map<const char*, std::unique_ptr<Range>>;  // by base
Ranges& ranges = *new Ranges;

// A planned request that somebody holds.
struct Block {
  Range* range;
  int64_t offset;
  bool leaves;
  std::vector<CUDAStream> streams;  // others that use it
};
// By address: raw_allocate demands that a tensor's pointer and its deleter's context be the same.
using Blocks = std::unordered_multimap<const void*, Block*>;
Blocks& blocks = *new Blocks;

// Where an arena is now. Programs that share it share this.
struct Home {
  Range* range = nullptr;
};

struct Program : Requests {
  using Requests::Requests;
  DeviceIndex device = 0;
  int64_t arena_bytes = 0;
  std::shared_ptr<Home> home = std::make_shared<Home>();
  bool owner = false;  // of that home
};

// A graph capture that PyTorch has announced; `filter` says which streams take part.
struct Capture {
  DeviceIndex device;
  MempoolId_t pool;
  std::function<bool(cudaStream_t)> filter;
};
std::vector<Capture>& captures = *new std::vector<Capture>;

class OnDevice {
 public:
  explicit OnDevice(DeviceIndex device) : before_(c10::cuda::ExchangeDevice(device)) {}
  ~OnDevice() { c10::cuda::ExchangeDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  DeviceIndex before_;
};

c10::Device device_of(const Range& range) { return {c10::DeviceType::CUDA, range.device}; }

void add(std::vector<CUDAStream>& streams, CUDAStream stream) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

Range* range_of(const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return nullptr;
  Range* range = std::prev(after)->second.get();
  return at < range->base + range->bytes ? range : nullptr;
}

bool is_capturing(CUDAStream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream.stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

// What `to` does from now on comes after what `from` has been given so far.
void order(DeviceIndex device, CUDAStream from, CUDAStream to) {
  OnDevice guard(device);
  if (is_capturing(from) != is_capturing(to)) {
    // A graph cannot wait for what is outside of it, and need not if that is over.
    if (is_capturing(to)) {
      c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
      const cudaError_t answer = cudaStreamQuery(from.stream());
      if (answer == cudaSuccess) return;
      TORCH_CHECK(answer == cudaErrorNotReady, cudaGetErrorString(answer));
      (void)cudaGetLastError();
    }
    TORCH_CHECK(false, "a graph is captured on one of two streams that use memory of a plan's arena, and the other one "
                "has work of its own there: call torch.cuda.synchronize() before the capture, and keep the planned "
                "step's tensors on the stream of the capture");
  }
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaError_t error = cudaEventRecord(event, from.stream());
  if (error == cudaSuccess) error = cudaStreamWaitEvent(to.stream(), event, 0);
  C10_CUDA_CHECK(cudaEventDestroy(event));  // what waits for it goes on waiting
  C10_CUDA_CHECK(error);
}

// PyTorch's allocator is told of a stream that uses a block of its own, which stays whose it was.
void record_plainly(void* block, c10::Device device, CUDAStream stream) {
  DataPtr lent(block, block, previous->raw_deleter(), device);
  try {
    previous->recordStream(lent, stream);
  } catch (...) {
    (void)lent.release_context();
    throw;
  }
  (void)lent.release_context();
}

// What PyTorch's allocator is to do once the mutex is given back.
class Later {
 public:
  void delete_memory(char* base) { ended_.push_back(base); }
  void record_stream(const Range& range, CUDAStream stream) { used_.push_back({range.base, device_of(range), stream}); }
  // The mutex is free, and the arenas named here are still there: the caller holds a block or a program of them.
  void run() {
    for (const Used& one : used_) record_plainly(one.base, one.device, one.stream);
    for (char* base : ended_) previous->raw_delete(base);
  }

 private:
  struct Used {
    char* base;
    c10::Device device;
    CUDAStream stream;
  };
  std::vector<char*> ended_;
  std::vector<Used> used_;
};

// PyTorch's allocator waits for the stream before it gives the arena's memory to somebody else.
void make_known(Range& range, CUDAStream stream, Later& later) {
  if (std::find(range.known.begin(), range.known.end(), stream) != range.known.end()) return;
  later.record_stream(range, stream);
  range.known.push_back(stream);
}

// Memory that another stream used may be used again on the arena's, once its work there is over.
void settle(Range& range) {
  while (!range.owed.empty()) {
    const CUDAStream other = range.owed.back();
    if (other != range.stream) order(range.device, other, range.stream);
    range.owed.pop_back();
  }
}

// A step begins on this stream: after whatever an earlier one does on another.
void follow(Range& range, CUDAStream stream, Later& later) {
  if (range.stream == stream) return;
  order(range.device, range.stream, stream);
  make_known(range, stream, later);
  range.stream = stream;
}

bool takes_part(const Capture& capture, DeviceIndex device, CUDAStream stream) {
  return capture.device == device && capture.filter(stream.stream());
}

bool in_capture(CUDAStream stream) { return !captures.empty() && is_capturing(stream); }

// A graph that is being captured will use the arena whenever it is replayed.
void keep_for_graphs(Range& range, CUDAStream stream) {
  if (!in_capture(stream)) return;
  bool found = false;
  for (const Capture& capture : captures)
    if (takes_part(capture, range.device, stream)) {
      range.graphs.insert(capture.pool);
      found = true;
    }
  range.forever = range.forever || !found;
}

// Memory for an arena, on the stream that is current there. The caller does not hold the mutex.
std::unique_ptr<Range> reserve(DeviceIndex device, int64_t bytes) {
  OnDevice guard(device);
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  {
    std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(!in_capture(stream), "a planned step needs a new arena while a graph is captured, and a graph's "
                "memory must not change: run a whole step, and let go of its gradients, before the capture");
  }
  auto* base = static_cast<char*>(previous->raw_alloc(static_cast<size_t>(bytes)));
  return std::unique_ptr<Range>(new Range{device, base, bytes, stream, {stream}});
}

Range* enter_range(std::unique_ptr<Range> range) {
  char* base = range->base;
  return (ranges[base] = std::move(range)).get();
}

// Gives the memory back if nothing is left that may use it.
void end_if_unused(Range& range, Later& later) {
  if (!range.orphaned || range.blocks != 0 || !range.graphs.empty() || range.forever) return;
  char* base = range.base;
  ranges.erase(base);
  later.delete_memory(base);
}

void orphan(Range& range, Later& later) {
  range.orphaned = true;
  end_if_unused(range, later);
}

char* lend(Range& range, int64_t offset, bool leaves) {
  ++range.blocks;
  range.leaving += leaves;
  char* at = range.base + offset;
  blocks.emplace(at, new Block{&range, offset, leaves, {}});
  return at;
}

void take_back(Blocks::iterator found, Later& later) {
  Block* block = found->second;
  blocks.erase(found);
  Range& range = *block->range;
  for (const CUDAStream stream : block->streams) add(range.owed, stream);
  range.leaving -= block->leaves;
  --range.blocks;
  delete block;
  end_if_unused(range, later);
}

}  // namespace
