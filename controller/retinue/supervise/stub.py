"""The stub: starts everything, restarts a crashed controller, writes the last verdict, exits last.

Promises: the trainer is started once at most; the controller's address outlives every controller; what the trainer
leaves behind is reported and ended; no hung file system and no hung controller keeps it from its end. It decides
nothing while a controller lives. Single-threaded, standard library only: it must outlive everything it starts.

JSON lines on the socketpair. A controller says (any line counts as a beat):
  {"op": "beat"}
  {"op": "launch", "argv", "env", "stop_fd": bool, "nodes": [names]}    once; again: answered with what is
  {"op": "trainer", "argv", "env", "cwd"}                               once; again: answered with what is
  {"op": "signal_trainer" | "signal_launch", "signal": "TERM"}
  {"op": "verdict", "verdict": {...}}                                   the latest is kept
  {"op": "finish", "exit_code", "verdict"}                              the controller exits after it
and hears
  {"ev": "hello", "starts", "launch", "trainer", "stops", "nodes"}      first, to each controller
  {"ev": "launch_started" | "trainer_started", "pid"}
  {"ev": "launch_refused" | "trainer_refused", "errno", "cause", "exit_code"}
  {"ev": "launch_exited" | "trainer_exited", "code", "signal"}
  {"ev": "stop", "signal", "count", "from_terminal"}
  {"ev": "node", "report"}   {"ev": "leftovers", "pids": [{"pid", "cmd"}]}
`launch` and `trainer` in hello are null or {pid, is_running, is_started, code, signal, errno, cause}.
"""

OBEY_LIMIT_S = 5.0
"""A stop signal that no controller can have acted on for this long is obeyed by the stub itself."""
STOPS_LIMIT = 3
"""The third signal is a person who does not want to wait for a controller."""
HURRY_S = 2.0
"""After it, nothing is waited for longer than this."""
TURN_S = 1.0
