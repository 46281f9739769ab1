// What every planned allocator knows without knowing a device: the requests of a plan's steps, the step that a thread
// is in, and which of them the next request is.
#pragma once

#include <algorithm>
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
  std::vector<int64_t> upper;    // 1: the size is the most that may be asked; empty: all sizes are exact
  int64_t misses = 0;
  int64_t first_miss[4] = {-1, -1, -1, -1};  // step, request number, bytes asked, bytes planned
  int64_t served = 0;

  Requests(int64_t steps, const int64_t* begin, const int64_t* bytes, const int64_t* places, const int64_t* leaving)
      : step_begin(begin, begin + steps + 1),
        sizes(bytes, bytes + begin[steps]),
        offsets(places, places + begin[steps]),
        leaves(leaving, leaving + begin[steps]) {}
};

// The step that a thread is in: as far as it runs as planned, its next request is number `cursor` of the plan's.
struct Cursor {
  int64_t step = 0;
  int64_t cursor = 0;
  int64_t end = 0;
  std::vector<int64_t> ahead;  // numbers after the cursor whose requests have come already
  std::vector<int64_t> held;   // numbers of this step's requests whose places somebody holds

  void enter(const Requests& requests, int64_t number) {
    step = number;
    cursor = requests.step_begin[number];
    end = requests.step_begin[number + 1];
    ahead.clear();
    held.clear();
  }

  // What was served at this place has been freed.
  void freed(const Requests& requests, int64_t offset) {
    for (auto at = held.end(); at != held.begin();)
      if (requests.offsets[*--at] == offset) {
        held.erase(at);
        return;
      }
  }
};

void count_miss(Requests& requests, const Cursor& at, size_t n, int64_t planned) {
  if (requests.misses++ != 0) return;
  requests.first_miss[0] = at.step;
  requests.first_miss[1] = at.cursor - requests.step_begin[at.step];
  requests.first_miss[2] = static_cast<int64_t>(n);
  requests.first_miss[3] = planned;
}

bool contains(const std::vector<int64_t>& numbers, int64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// Whether nothing that the step was served lies in the place of this request. As planned that is always so.
bool is_vacant(const Requests& requests, const Cursor& at, int64_t number) {
  const int64_t begin = requests.offsets[number], end = begin + requests.sizes[number];
  return begin < 0 || std::none_of(at.held.begin(), at.held.end(), [&](int64_t other) {
    const int64_t offset = requests.offsets[other];
    return offset < end && begin < offset + requests.sizes[other];
  });
}

// Whether the planned request `number` may be for n bytes.
bool is_for(const Requests& requests, int64_t number, int64_t n) {
  const bool at_most = !requests.upper.empty() && requests.upper[number] != 0;
  return at_most ? n <= requests.sizes[number] : n == requests.sizes[number];
}

// The number of the planned request that this one, for n bytes, is; -1 where it is none, which is counted.
//
// It is the first of its size that has not come yet: a request too many uses up no planned one of another size, and
// one that does not come keeps none behind it from its place. Where such a request would lie in a place that another
// one still holds, since the step frees in another order than planned, it is none.
int64_t next_request(Requests& requests, Cursor& at, size_t n) {
  for (int64_t number = at.cursor; number < at.end; ++number) {
    if (!is_for(requests, number, static_cast<int64_t>(n)) || contains(at.ahead, number)) continue;
    if (!is_vacant(requests, at, number)) continue;
    if (number != at.cursor) at.ahead.push_back(number);
    while (at.cursor < at.end && (at.cursor == number || contains(at.ahead, at.cursor))) ++at.cursor;
    if (requests.offsets[number] >= 0) at.held.push_back(number);
    return number;
  }
  count_miss(requests, at, n, at.cursor < at.end ? requests.sizes[at.cursor] : -1);
  return -1;
}

void read_statistics(const Requests& requests, int64_t* out) {
  out[0] = requests.misses;
  out[1] = requests.served;
  for (int i = 0; i < 4; ++i) out[2 + i] = requests.first_miss[i];
}

}  // namespace
