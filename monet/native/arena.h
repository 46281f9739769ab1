// Arenas: the address space that planned requests are served from, the requests of a plan's steps, and
// the count of live bytes, which an arena adds to as a whole.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "program.h"

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr int kMaxArenas = 1024;

// What torch holds on the CPU, arenas included, and the most that it has held.
std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};

void raise(std::atomic<int64_t>& most, int64_t value) {
  int64_t seen = most.load();
  while (value > seen && !most.compare_exchange_weak(seen, value)) {
  }
}

void count(int64_t delta) { raise(peak_bytes, live_bytes.fetch_add(delta) + delta); }

// What lies in a guided arena (guided.h): where it ends, and as which request of which step it came.
struct Place {
  int64_t end;
  uint64_t step;
  int64_t entry;
};

// Ranges of address space that belong to arenas. A block inside one is only counted when it is freed. Tensors may
// outlive their arena's owner (what autograd keeps for a backward pass that never comes): the last one unmaps it.
struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<int64_t> blocks{0};     // that tensors hold
  std::atomic<bool> orphaned{false};  // its owner is gone
  int64_t arena_bytes = 0;            // that count as live
  std::mutex leaving_mutex;
  // Blocks that somebody holds and that outlive their step, as gradients do until their last holder lets go of them:
  // bytes by offset. How many there are is read without the mutex, by whoever frees a block.
  std::multimap<int64_t, int64_t> leaving;
  std::atomic<int64_t> leaving_count{0};
  std::vector<size_t> cuts;           // offsets at which the mapping may be in pieces
  bool guided = false;                // its places are looked up, and never moved away from
  std::map<int64_t, Place> places;    // of a guided arena, by offset
};
Range* const ranges = new Range[kMaxArenas];  // never destroyed: threads may free blocks when the process ends
std::atomic<int> range_count{0};
std::mutex ranges_mutex;

Range* range_of(const void* pointer) {
  const auto p = reinterpret_cast<uintptr_t>(pointer);
  const int n = range_count.load(std::memory_order_acquire);
  for (int i = 0; i < n; ++i)
    if (p >= ranges[i].begin.load(std::memory_order_relaxed) && p < ranges[i].end.load(std::memory_order_relaxed))
      return &ranges[i];
  return nullptr;
}

// Of an orphan that no tensor holds. Whoever finds it so first does it.
void unmap_orphan(Range& range) {
  bool orphaned = true;
  if (range.blocks.load() != 0 || !range.orphaned.compare_exchange_strong(orphaned, false)) return;
  std::lock_guard<std::mutex> lock(ranges_mutex);
  const uintptr_t begin = range.begin.load(), end = range.end.load();
  const int64_t bytes = range.arena_bytes;
  range.end.store(0);
  range.begin.store(0);  // from here on the range is another arena's to take
  munmap(reinterpret_cast<void*>(begin), end - begin);
  count(-bytes);
}

// Its owner lets go of it: it is unmapped with the last block that a tensor holds.
void orphan(Range& range) {
  range.orphaned.store(true);
  unmap_orphan(range);
}

// Where an arena is now. Programs that share it share this; what holds a gradient makes it move (move.h).
struct Home {
  char* base = nullptr;
  Range* range = nullptr;
};

size_t mapped_bytes(int64_t arena_bytes) { return (static_cast<size_t>(arena_bytes) + 4095) / 4096 * 4096; }

// Address space for an arena, not counted yet; pages become resident when first written. nullptr: refused.
Range* reserve_range(int64_t arena_bytes) {
  std::lock_guard<std::mutex> lock(ranges_mutex);
  int slot = 0;
  while (slot < kMaxArenas && ranges[slot].begin.load() != 0) ++slot;
  if (slot == kMaxArenas) return nullptr;
  const size_t mapped = mapped_bytes(arena_bytes);
  // Aligned to huge pages by mapping more address space than needed and giving the rest back.
  void* raw = mmap(nullptr, mapped + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (at + kPage - 1) / kPage * kPage;
  if (aligned > at) munmap(raw, aligned - at);
  const uintptr_t tail = at + mapped + kPage - (aligned + mapped);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + mapped), tail);
  madvise(reinterpret_cast<void*>(aligned), mapped, MADV_HUGEPAGE);
  Range& range = ranges[slot];
  range.arena_bytes = arena_bytes;
  range.cuts.clear();
  range.guided = false;
  range.end.store(aligned + mapped);
  range.begin.store(aligned);
  if (slot + 1 > range_count.load()) range_count.store(slot + 1, std::memory_order_release);
  return &range;
}

// The requests of a plan's steps, and the arena that they are served from.
struct Program : Requests {
  using Requests::Requests;
  std::vector<int64_t> crew_offset;  // of step s: where the other threads' region begins
  std::vector<int64_t> crew_bytes;   // and its size, for `crew` threads; 0: there is none
  int crew = 0;
  int64_t arena_bytes = 0;
  std::shared_ptr<Home> home = std::make_shared<Home>();
  bool owner = false;  // of that home
};

// The step that a thread is in.
struct Session : Cursor {
  Program* program = nullptr;
};
thread_local Session session;

// Whose step is paused (monet_pause), and the counts of before.
struct Pause {
  Program* program = nullptr;
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
};
thread_local Pause paused;

}  // namespace
