// What every planned allocator knows without knowing a device: the requests of a plan's steps, the step that a thread
// is in, and which of them the next request is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

// The requests of a plan's steps.
struct Requests {
  std::vector<int64_t> step_begin;  // requests of step s: [step_begin[s], step_begin[s + 1])
  std::vector<int64_t> sizes;
  std::vector<int64_t> offsets;  // -1: PyTorch's own allocator
  std::vector<int64_t> leaves;   // 1: the block outlives the step
  int64_t misses = 0;
  int64_t first_miss[4] = {-1, -1, -1, -1};  // step, request number, bytes asked, bytes planned
  int64_t served = 0;

  Requests(int64_t steps, const int64_t* begin, const int64_t* bytes, const int64_t* places, const int64_t* leaving)
      : step_begin(begin, begin + steps + 1),
        sizes(bytes, bytes + begin[steps]),
        offsets(places, places + begin[steps]),
        leaves(leaving, leaving + begin[steps]) {}
};

// The step that a thread is in: its next request is number `cursor` of the plan's.
struct Cursor {
  int64_t step = 0;
  int64_t cursor = 0;
  int64_t end = 0;

  void enter(const Requests& requests, int64_t number) {
    step = number;
    cursor = requests.step_begin[number];
    end = requests.step_begin[number + 1];
  }
};

void count_miss(Requests& requests, const Cursor& at, size_t n, int64_t planned) {
  if (requests.misses++ != 0) return;
  requests.first_miss[0] = at.step;
  requests.first_miss[1] = at.cursor - requests.step_begin[at.step];
  requests.first_miss[2] = static_cast<int64_t>(n);
  requests.first_miss[3] = planned;
}

// The number of the planned request that this one, for n bytes, is; -1 where it is none, which is counted.
int64_t next_request(Requests& requests, Cursor& at, size_t n) {
  if (at.cursor < at.end && requests.sizes[at.cursor] == static_cast<int64_t>(n)) return at.cursor++;
  count_miss(requests, at, n, at.cursor < at.end ? requests.sizes[at.cursor] : -1);
  // Stay in step with the plan where only the size differs.
  if (at.cursor < at.end) ++at.cursor;
  return -1;
}

void read_statistics(const Requests& requests, int64_t* out) {
  out[0] = requests.misses;
  out[1] = requests.served;
  for (int i = 0; i < 4; ++i) out[2 + i] = requests.first_miss[i];
}

}  // namespace
