// The trace: every step as one JSON line, enough to draw a Gantt chart of the schedule and to animate the block
// table. Flag: --trace FILE. A step's line carries only the blocks added in that step; a reader rebuilds the tables.
//
//   {"trace":"nano","version":2,"block_size":…, …}                       the first line: what the caller knows
//   {"request":"arrived","id":3,"request_id":"a","index":0,"prompt_tokens":12,"time":0.001234}
//   {"step":7,"time":0.012345,"schedule":…,"forward":…,"sample":…,"tokens":9,"running":2,"waiting":0,
//    "free_blocks":5,"admitted":[[3,8]],"preempted":[],"events":[["freed",1,4],…],
//    "seqs":[{"id":3,"pos":8,"n":2,"new_blocks":[6],"samples":true,"discard":false,"sampled":[17],
//             "texts":["The"," sea"],"sampled_texts":[" is"],"finish":"stop"}]}
//
// Times are in seconds since the start, to the microsecond; schedule, forward and sample are durations. "id" is the
// sequence's; the request is the client's, with its answer's index: "arrived", "forked" (answers 1 … n-1 of n, once
// the prompt is computed), and at the end "stop", "length", … "admitted": [sequence, tokens that it did not
// have to compute]. "texts" are those of the tokens that the step computes. "error" says why a sequence finished with
// "error".
// Version 1 had no request_id, index and texts, no line for "forked", "admitted" as a list of sequences, and "cached"
// in "seqs".
// Events come in the order in which they happened, since the last step's line: [kind, sequence, block].
// allocated, hit and shared put the block at the end of the sequence's table; freed takes the sequence's last block
// away; cached makes it findable; evicted (sequence -1) makes it unfindable. Replaying them gives every table.
// It does not read traces: app/trace_summary.cpp does.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/block_manager.h"  // BlockEvent
#include "core/sequence.h"       // Sequence
#include "core/step.h"           // StepPlan, StepResult

namespace nano {

class TraceWriter {
 public:
  // `header_json` is an object of what the caller knows (model, flags, machine, block_size).
  // Error: it is not, or the file cannot be written.
  TraceWriter(const std::string& path, const std::string& header_json);

  // What a token says; the engine knows no text. Without it the trace has none.
  std::function<std::string(int32_t)> text_of;

  // Call it after commit, with the block events since the last call.
  void step(const StepPlan& plan, const StepResult& result, const std::vector<BlockEvent>& events,
            double start_seconds);
  void request(const char* event, const std::string& request_id, const Sequence& seq, double seconds);
  // What cannot be written (the disk is full) is nobody's answer: the trace stops there with one warning on stderr,
  // and later calls write nothing. close() writes what is buffered. False: the trace is not whole.
  // Of a trace that was not closed the end of this object writes what can be.
  bool close();

 private:
  void append_seq(const ScheduledSeq& seq, const SeqResult& result);
  void append_texts(const char* name, const std::vector<int32_t>& ids);
  void write_line();
  void stop();

  std::string path_, line_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool stopped_ = false;
};

}  // namespace nano
