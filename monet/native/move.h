// Moving an arena away from what outlives a step: a gradient that somebody still holds when the next step begins.
//
// Nothing is copied. The pages of held blocks stay where they are, so every alias of them stays right, a numpy view
// and a raw pointer included; all other pages move to a new range, at the same offsets, without a fault. What the old
// range keeps is given back with its last block.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "arena.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace {

using Run = std::pair<size_t, size_t>;  // [begin, end) in bytes, whole pages

// By offset and not by a context of the block's own: raw_allocate demands that pointer and context be the same.
void lend(Range& range, int64_t offset, int64_t bytes) {
  std::lock_guard<std::mutex> lock(range.leaving_mutex);
  range.leaving.emplace(offset, bytes);
  range.leaving_count.fetch_add(1);
}

// A block at this offset is freed; it may be one that outlived its step.
void take_back(Range& range, int64_t offset) {
  if (range.leaving_count.load() == 0) return;
  std::lock_guard<std::mutex> lock(range.leaving_mutex);
  const auto found = range.leaving.find(offset);
  if (found == range.leaving.end()) return;
  range.leaving.erase(found);
  range.leaving_count.fetch_sub(1);
}

// The pages of held blocks, in order and without overlap.
std::vector<Run> held_pages(Range& range, size_t page) {
  std::vector<Run> runs;
  {
    std::lock_guard<std::mutex> lock(range.leaving_mutex);
    for (const auto& [offset, bytes] : range.leaving) {
      const auto begin = static_cast<size_t>(offset), end = begin + static_cast<size_t>(bytes);
      runs.emplace_back(begin / page * page, (end + page - 1) / page * page);
    }
  }
  std::sort(runs.begin(), runs.end());
  std::vector<Run> merged;
  for (const Run& run : runs) {
    if (!merged.empty() && run.first <= merged.back().second)
      merged.back().second = std::max(merged.back().second, run.second);
    else
      merged.push_back(run);
  }
  return merged;
}

// Old pages become the new range's. Where the kernel cannot (before 5.7, or too many mappings) they are given up, and
// the new range's are made when first written.
void move_pages(uintptr_t from, uintptr_t to, const Run& run) {
  void* old = reinterpret_cast<void*>(from + run.first);
  const size_t bytes = run.second - run.first;
  // The old address space stays reserved: anything else that was mapped there would pass for the arena's.
  void* moved = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                       reinterpret_cast<void*>(to + run.first));
  if (moved == MAP_FAILED) madvise(old, bytes, MADV_DONTNEED);
}

// Moves the arena away from the blocks that are held. Returns the bytes of their pages, 0 where there are none; -1
// where no address space is left for another arena.
int64_t move_away(Home& home) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Range& old = *home.range;
  const std::vector<Run> held = held_pages(old, page);
  if (held.empty()) return 0;
  Range* fresh = reserve_range(old.arena_bytes);
  if (fresh == nullptr) return -1;
  const size_t mapped = old.end.load() - old.begin.load();
  // A move takes one mapping at a time, so runs end where an earlier move has left a seam.
  std::vector<size_t> cuts = old.cuts;
  size_t kept = 0;
  for (const Run& run : held) {
    cuts.push_back(run.first);
    cuts.push_back(std::min(run.second, mapped));
    kept += std::min(run.second, mapped) - run.first;
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const uintptr_t from = old.begin.load(), to = fresh->begin.load();
  size_t begin = 0;
  auto is_held = [&](size_t at) {
    return std::any_of(held.begin(), held.end(), [&](const Run& run) { return run.first <= at && at < run.second; });
  };
  cuts.push_back(mapped);
  for (const size_t cut : cuts) {
    if (cut > begin && !is_held(begin)) move_pages(from, to, {begin, cut});
    begin = std::max(begin, cut);
  }
  cuts.pop_back();
  fresh->cuts = cuts;
  // Live are the new arena and what the old one keeps.
  count(static_cast<int64_t>(kept));
  old.arena_bytes = static_cast<int64_t>(kept);
  home.range = fresh;
  home.base = reinterpret_cast<char*>(to);
  orphan(old);
  return static_cast<int64_t>(kept);
}

}  // namespace
