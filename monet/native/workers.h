// Workers: the other threads of a thread's parallel loops. What a kernel asks for on them is recorded, or
// served, as one stack a worker.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "arena.h"

namespace {

constexpr size_t kAlignment = 64;

// What a thread's parallel loops do about memory. Its workers read it inside a loop only, and the thread
// itself writes it outside of loops only; it lives as long as the process, since workers hold it.
struct Crew {
  enum Mode { kFree, kRecording, kServing } mode = kFree;
  uint64_t turn = 0;              // number of the step or recording
  Range* range = nullptr;         // serving: where the workers' memory of this step is
  char* slices = nullptr;
  size_t slice_bytes = 0;         // of each of them
  int slice_count = 0;
  std::atomic<int> slices_taken{0};
  std::atomic<int64_t> most{0};   // recording: the most bytes that one worker's stack reached
  std::atomic<int64_t> alive{0};  // recording: blocks that workers asked for and nobody released
  std::atomic<int64_t> misses{0};
};
thread_local Crew* own_crew = nullptr;

struct Block {
  const void* at;
  size_t begin;  // offset in the stack
  bool released;
};

// A worker's requests of one turn. Space is used again once everything above it was released by this
// worker, so a run's stack is as high as the recorded one's.
struct Worker {
  Crew* crew = nullptr;
  uint64_t turn = 0;
  char* slice = nullptr;
  size_t top = 0;
  std::vector<Block> blocks;

  void begin_turn() {
    turn = crew->turn;
    top = 0;
    blocks.clear();
    slice = nullptr;
    if (crew->mode == Crew::kServing) {
      const int taken = crew->slices_taken.fetch_add(1);
      if (taken < crew->slice_count) slice = crew->slices + taken * crew->slice_bytes;
    }
  }
  void push(const void* at, size_t n) {
    blocks.push_back({at, top, false});
    top += (n + kAlignment - 1) / kAlignment * kAlignment;
  }
  void release(const void* at) {
    const auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](const Block& b) { return b.at == at; });
    if (found == blocks.rend()) return;
    found->released = true;
    while (!blocks.empty() && blocks.back().released) {
      top = blocks.back().begin;
      blocks.pop_back();
    }
  }
};
thread_local Worker worker;

bool works_for(Crew::Mode mode) {
  if (worker.crew == nullptr || worker.crew->mode != mode) return false;
  if (worker.turn != worker.crew->turn) worker.begin_turn();
  return true;
}

Crew& crew_of_this_thread() {
  if (own_crew == nullptr) own_crew = new Crew;
  return *own_crew;
}

}  // namespace
