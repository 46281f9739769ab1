// A step's requests served from the places that an earlier step's requests were given: the profile-guided arena of
// Sekiyama et al. (2018), section 4.
//
// A plan is advice. What Python does in a step may differ from the step that was recorded, so a place is served only
// where nothing lies that is still held: that is looked up at every request. What the plan does not foresee, or whose
// place is taken, lies in the smallest gap of the arena that it fits at the moment, and where there is none it is
// PyTorch's, as is what outlives its step. Each step is recorded while it is served, so that a step that went
// otherwise can be planned anew.
//
// One lock guards all of it, as any thread may free what another one requested. It is held for some tens of
// nanoseconds, longer where a gap is looked for among many blocks, and around a fork, so that a child finds it free.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "arena.h"

namespace {

constexpr int64_t kAligned = 64;  // what PyTorch gives to kernels
constexpr size_t kMostRequests = size_t{1} << 22;  // of a step, in its record: one may never end
constexpr size_t kAhead = 16;  // requests that a plan has and a step leaves out are looked past, so many at once

struct Request {
  int64_t bytes;
  int64_t born;  // on the step's clock, which ticks with every request and every release
  int64_t died;  // -1: still held when the step ended
};

// The requests of a step in order, and their offsets; -1: PyTorch's.
struct GuidedPlan {
  std::vector<int64_t> sizes;
  std::vector<int64_t> offsets;
};

// One arena and the step that is in it. Counters are the step's, but for `most`.
struct Guide {
  Home home;
  const GuidedPlan* plan = nullptr;  // nullptr: the step is the first of its kind, and finds gaps at most
  size_t cursor = 0;                 // the plan's next request
  uint64_t step = 0;                 // the number of the step that is recorded, 0 for none
  int64_t clock = 0;
  std::vector<Request> trace;
  int64_t served = 0;
  int64_t unplaced = 0;        // whose request in the plan has no place
  int64_t moved = 0;           // that the plan did not foresee, or whose place was taken, and that found a gap
  int64_t missed = 0;          // and that found none
  int64_t limit = 0;           // bytes that torch may hold, 0 for no limit
  std::atomic<int64_t> most{0};  // bytes that torch held when a step requested something
};

std::mutex guided_mutex;
uint64_t guided_steps = 0;     // how many there have been
// Never destroyed: threads may free blocks when the process ends.
std::vector<Guide*>& recorded = *new std::vector<Guide*>;  // whose steps have not ended
std::vector<Guide*>& guides = *new std::vector<Guide*>;    // that there are
thread_local Guide* guide = nullptr;

void forbid_forks_inside() {
  static const int registered = pthread_atfork([] { guided_mutex.lock(); }, [] { guided_mutex.unlock(); },
                                               [] {
                                                 guide = nullptr;  // a child's steps are its own
                                                 recorded.clear();
                                                 guided_mutex.unlock();
                                               });
  static_cast<void>(registered);
}

// What steps do when a block that was requested as their `entry` is freed. The lock is held.
void note_death(uint64_t step, int64_t entry) {
  for (Guide* one : recorded)
    if (one->step == step) {
      one->trace[static_cast<size_t>(entry)].died = one->clock++;
      return;
    }
}

// The number of the plan's request that a request of n bytes is taken for, or -1.
int64_t match(Guide& one, int64_t n) {
  const std::vector<int64_t>& sizes = one.plan->sizes;
  const size_t at = one.cursor, end = std::min(sizes.size(), at + kAhead + 1);
  const bool fits = at < sizes.size() && n <= sizes[at];
  if (fits && n * 2 >= sizes[at]) return static_cast<int64_t>(one.cursor++);
  // Something else, perhaps: steps go on where the plan has just this size.
  for (size_t k = at; k < end; ++k)
    if (sizes[k] == n) {
      one.cursor = k + 1;
      return static_cast<int64_t>(k);
    }
  if (fits) return static_cast<int64_t>(one.cursor++);
  if (at < sizes.size() && n <= 2 * sizes[at]) ++one.cursor;  // the same request, larger
  return -1;
}

bool is_free(const Range& range, int64_t begin, int64_t end) {
  auto after = range.places.lower_bound(begin);
  if (after != range.places.end() && after->first < end) return false;
  return after == range.places.begin() || std::prev(after)->second.end <= begin;
}

// The offset of the smallest gap of at least n bytes, or -1.
int64_t gap(const Range& range, int64_t n) {
  int64_t best = -1, least = range.arena_bytes + 1, begin = 0;
  auto look = [&](int64_t end) {
    if (end - begin >= n && end - begin < least) best = begin, least = end - begin;
  };
  for (const auto& [offset, place] : range.places) {
    look(offset);
    begin = (place.end + kAligned - 1) / kAligned * kAligned;
  }
  look(range.arena_bytes);
  return best;
}

// Records a request of the step and gives it its place; nullptr where PyTorch serves it. `entry` is its number.
char* serve(Guide& one, int64_t n, int64_t* entry) {
  std::lock_guard<std::mutex> lock(guided_mutex);
  *entry = -1;
  if (one.trace.size() >= kMostRequests) return nullptr;
  *entry = static_cast<int64_t>(one.trace.size());
  one.trace.push_back({n, one.clock++, -1});
  if (one.plan == nullptr && one.home.range == nullptr) return nullptr;
  const int64_t planned = one.plan == nullptr ? -1 : match(one, n);
  int64_t offset = planned < 0 ? -1 : one.plan->offsets[static_cast<size_t>(planned)];
  Range* range = one.home.range;
  if (planned >= 0 && offset < 0) {
    ++one.unplaced;
    return nullptr;
  }
  if (planned < 0 || range == nullptr || offset + n > range->arena_bytes || !is_free(*range, offset, offset + n)) {
    offset = range == nullptr ? -1 : gap(*range, n);
    if (offset < 0) {
      ++one.missed;
      return nullptr;
    }
    ++one.moved;
  } else {
    ++one.served;
  }
  range->places.emplace(offset, Place{offset + n, one.step, *entry});
  range->blocks.fetch_add(1);
  return one.home.base + offset;
}

// A block of a guided arena is freed; the caller counts it off the range.
void vacate(Range& range, const void* pointer) {
  const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) - range.begin.load());
  std::lock_guard<std::mutex> lock(guided_mutex);
  const auto found = range.places.find(offset);
  if (found == range.places.end()) return;
  const Place place = found->second;
  range.places.erase(found);
  note_death(place.step, place.entry);
}

// A block that PyTorch served is freed.
void note_freed(uint64_t step, int64_t entry) {
  std::lock_guard<std::mutex> lock(guided_mutex);
  note_death(step, entry);
}

// Only the pages of what is still held stay in memory, and count; nothing is served from the range any more.
void give_up_all_but_held(Range& range) {
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  std::lock_guard<std::mutex> lock(guided_mutex);
  const auto mapped = static_cast<int64_t>(range.end.load() - range.begin.load());
  int64_t begin = 0, kept = 0;
  auto give_up = [&](int64_t end) {
    if (end > begin) madvise(reinterpret_cast<char*>(range.begin.load()) + begin, end - begin, MADV_DONTNEED);
  };
  for (const auto& [offset, place] : range.places) {
    give_up(offset / page * page);
    const int64_t from = std::max(begin, offset / page * page), to = (place.end + page - 1) / page * page;
    kept += std::max<int64_t>(0, to - from);
    begin = std::max(begin, to);
  }
  give_up(mapped);
  count(kept - range.arena_bytes);
  range.arena_bytes = kept;
}

// The arena has so many bytes from here on, or more where something lies in a larger one. What lies in a smaller one
// stays there, and counts, until it is freed. Returns 0, or 1 when memory is refused.
int make_guided_room(Guide& one, int64_t bytes) {
  Range* old = one.home.range;
  if (old != nullptr && old->arena_bytes >= bytes) {
    std::lock_guard<std::mutex> lock(guided_mutex);
    if (old->arena_bytes == bytes || !old->places.empty()) return 0;
  }
  one.home = Home{};
  if (old != nullptr) {
    give_up_all_but_held(*old);
    orphan(*old);
  }
  if (bytes == 0) return 0;
  Range* range = reserve_range(bytes);
  if (range == nullptr) return 1;
  range->guided = true;
  one.home = Home{reinterpret_cast<char*>(range->begin.load()), range};
  count(bytes);
  raise(one.most, live_bytes.load());
  return 0;
}

// The calling thread's requests are `one`'s from here on; nobody's where it is nullptr, or a guide that is gone, as one
// that an outer step had may be where steps do not end in the order in which they began.
Guide* bind_guide(Guide* one) {
  std::lock_guard<std::mutex> lock(guided_mutex);
  const bool there = std::find(guides.begin(), guides.end(), one) != guides.end();
  return std::exchange(guide, there ? one : nullptr);
}

Guide* make_guide(int64_t limit) {
  forbid_forks_inside();
  auto* made = new Guide;
  made->limit = limit;
  std::lock_guard<std::mutex> lock(guided_mutex);
  guides.push_back(made);
  return made;
}

void begin_step(Guide& one, const GuidedPlan* plan) {
  std::lock_guard<std::mutex> lock(guided_mutex);
  one.plan = plan;
  one.cursor = 0;
  one.step = ++guided_steps;
  one.clock = 0;
  one.trace.clear();
  one.served = one.moved = one.unplaced = one.missed = 0;
  recorded.push_back(&one);
}

void end_step(Guide& one) {
  std::lock_guard<std::mutex> lock(guided_mutex);
  one.step = 0;
  one.plan = nullptr;
  recorded.erase(std::remove(recorded.begin(), recorded.end(), &one), recorded.end());
}

// Its arena goes with the last block that lies in it.
void destroy_guide(Guide* one) {
  end_step(*one);
  if (guide == one) guide = nullptr;
  {
    std::lock_guard<std::mutex> lock(guided_mutex);
    guides.erase(std::remove(guides.begin(), guides.end(), one), guides.end());
  }
  Range* range = one->home.range;
  delete one;
  if (range != nullptr) orphan(*range);
}

}  // namespace
