# SPDX-License-Identifier: Apache-2.0
"""A signal handler that raises, wherever it breaks off the main thread, leaves no lease behind and nothing half done."""

import contextlib
import dis
import gc
import os
import pathlib
import random
import signal
import sys
import threading
import time
import unittest
import warnings
import weakref
from unittest import mock

import spillway
import spillway.torch as st
import torch
from spillway import _engine
from spillway.torch import _grad_mode, _leasing, _saved, _state, _tensor
from torch_case import DEVICE, TorchTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from seed import draw_seed


def interrupt():
    raise KeyboardInterrupt


class InterruptsTest(TorchTest):
    def weight(self):
        """Returns a run and a weight in its engine."""
        run = st.open(self.store(), pinned="1MiB", device=DEVICE)
        self.addCleanup(run.close)
        return run, st.offload(torch.nn.ParameterList([torch.zeros(8)]), run)[0]

    def test_a_lease_is_not_lost_before_a_lease_object_owns_it(self):
        run, weight = self.weight()
        for name in ("spw_acquire_host", "spw_acquire", "spw_lease_size_bytes", "spw_lease_data"):
            inner = getattr(_engine.library, name)

            def interrupted(*arguments):
                inner(*arguments)
                del arguments
                raise KeyboardInterrupt

            acquire = run.engine.acquire if name == "spw_acquire" else run.engine.acquire_host
            with mock.patch.object(_engine.library, name, interrupted):
                try:
                    acquire(weight._home.id, access="read-write")
                    self.fail("no interrupt")
                except KeyboardInterrupt as error:
                    kept = error  # as a notebook keeps it, with its traceback
            run.engine.commit()  # fails while a tile is leased to be written
            del kept

    def test_an_engine_a_stream_and_an_optimizer_are_not_lost(self):
        store = self.store()
        for name in ("spw_engine_open", "spw_stream_create", "spw_optimizer_create"):
            with st.open(store, pinned="1MiB", device=DEVICE) as run:
                inner = getattr(_engine.library, name)

                def interrupted(*arguments):
                    inner(*arguments)
                    raise KeyboardInterrupt

                with mock.patch.object(_engine.library, name, interrupted), self.assertRaises(KeyboardInterrupt):
                    if name == "spw_engine_open":
                        st.open(other := self.store())
                    elif name == "spw_stream_create":
                        run.engine.stream()
                    else:
                        st.AdamW([torch.nn.Parameter(torch.zeros(8))], store=run)
        for path in (store, other):
            st.open(path, pinned="1MiB").close()  # fails while the store is open

    def test_a_run_is_closed_even_if_the_close_of_an_optimizer_is_broken_off(self):
        store = self.store()
        run = st.open(store, pinned="1MiB", device=DEVICE)
        optimizers = [st.AdamW([torch.nn.Parameter(torch.zeros(8))], store=run) for _ in range(2)]
        inner = _state.State.close

        def interrupted(state):
            inner(state)
            raise KeyboardInterrupt

        with mock.patch.object(_state.State, "close", interrupted), self.assertRaises(KeyboardInterrupt):
            run.close()
        st.open(store, pinned="1MiB").close()  # fails while the store is open
        del optimizers

    def test_ctrl_c_at_any_time_ends_offload_or_all_weights_are_right(self):
        chance, seconds = random.Random(draw_seed()), 0.05
        for _ in range(20):
            model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(24)])
            expected = [param.detach().clone() for param in model.parameters()]
            over = threading.Event()

            def press(after):
                over.wait(after)
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=press, args=(chance.uniform(0, seconds),))
            begin, is_offloaded = time.monotonic(), False
            with st.open(self.store(), pinned="16MiB", device=DEVICE, report=False) as run:
                try:
                    thread.start()
                    st.offload(model, run)
                    is_offloaded, seconds = True, time.monotonic() - begin
                    over.set()
                    thread.join()
                except KeyboardInterrupt:
                    pass
                with contextlib.suppress(KeyboardInterrupt):
                    thread.join()
                if is_offloaded:
                    self.assert_same([param.clone() for param in model.parameters()], expected)

    def test_an_operation_that_is_broken_off_anywhere_is_not_waited_for(self):
        run, weight = self.weight()

        def add():
            with torch.no_grad():
                weight.add_(1)

        def none():
            with run.leasing.none():
                pass

        for work in (add, none):
            for place in range(1, 1000):
                if not self.broken_off(work, place, _leasing):
                    break
                # In a thread, because a lock that the broken-off thread holds does not stop that thread.
                others = threading.Thread(target=lambda: (none(), add()), daemon=True)
                others.start()
                others.join(60)
                self.assertFalse(others.is_alive(), (work.__name__, place))
                self.assertEqual(run.leasing._mine.under_way, set(), (work.__name__, place))
                run.engine.commit()  # fails while a tile is leased to be written
            self.assertGreater(place, 10)

    def test_a_handler_within_an_operation_asks_for_the_state(self):
        weight = st.offload(torch.nn.ParameterList([torch.zeros(8)]), run := st.open(pinned="1MiB", device=DEVICE))[0]
        self.addCleanup(run.close)
        optimizer = st.AdamW([weight], store=run)
        for work in (weight.detach().clone, optimizer.state_dict):
            for place in range(1, 1000):
                saved = []
                if not self.broken_off(work, place, _leasing, handler=lambda: saved.append(optimizer.state_dict())):
                    break
                self.assertEqual(len(saved), 1, place)
                self.assertEqual(run.leasing._mine.under_way, set(), place)
            self.assertGreater(place, 10)

    def test_autograd_is_on_after_an_operation_that_is_broken_off(self):
        run, weight = self.weight()
        for is_inference in (False, True):
            def view():
                with torch._C._InferenceMode(is_inference):
                    weight.detach().view(2, 4)

            for place in range(1, 1000):
                if not self.broken_off(view, place, _tensor, torch.autograd.grad_mode):
                    break
                self.assertTrue((torch.ones(1, requires_grad=True) * 2).requires_grad, place)
            self.assertGreater(place, 10)

    def test_gradients_are_on_after_a_call_that_is_broken_off(self):
        run, weight = self.weight()
        optimizer = st.AdamW([weight], store=run)
        full = optimizer.full_state_dict()

        def assign():
            weight.data = torch.ones(8)

        for work in (optimizer.step, lambda: optimizer.load_state_dict(full), assign):
            for place in range(1, 1000):
                if not self.broken_off(work, place, _grad_mode, torch.autograd.grad_mode):
                    break
                self.assertTrue(torch.is_grad_enabled(), place)
            self.assertGreater(place, 3)

    def test_an_activation_is_not_waited_for_after_its_saving_or_its_end_is_broken_off(self):
        run, _ = self.weight()
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda _: None  # what breaks off a finalizer

        def work():
            with st.saved_tensors(run):
                loss = (torch.ones(150, 150, requires_grad=True) * 2).sin().sum()
            loss.backward()

        for place in range(1, 1000):
            if not self.broken_off(work, place, _saved, weakref):
                break
            self.error = None
            gc.collect()
            run.check_nothing_waits()
        self.assertGreater(place, 10)

    def test_handlers_run_when_a_step_is_complete_and_counted(self):
        params = [torch.nn.Parameter(torch.ones(8))]
        optimizer = st.SGD(params, lr=1.0)
        inner, events = optimizer._engine_state.step, []
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)

        def interrupted(updates):
            for number in (signal.SIGINT, *numbers):
                signal.raise_signal(number)
            inner(updates)
            events.append("updated")

        def save(number, _):
            events.append((number, params[0][0].item(), optimizer.state_dict()["spillway"]["steps"],
                           optimizer.run.report.steps))

        def preempt(number, frame):
            save(number, frame)
            raise SystemExit

        handlers = {number: preempt if number == signal.SIGTERM else save for number in numbers}
        for number, handler in handlers.items():
            self.addCleanup(signal.signal, number, signal.signal(number, handler))
        params[0].grad = torch.ones(8)
        with mock.patch.object(optimizer._engine_state, "step", interrupted), self.assertRaises(KeyboardInterrupt) as raised:
            optimizer.step()
        self.assertIsInstance(raised.exception.__context__, SystemExit)
        self.assertEqual(events[0], "updated")
        self.assertCountEqual(events[1:], [(number, 0.0, [[1]], 1) for number in numbers])
        for number, handler in handlers.items():
            self.assertIs(signal.getsignal(number), handler)

    def test_a_handler_that_saves_within_backward_is_told_that_half_a_step_is_done(self):
        params = [torch.nn.Parameter(torch.ones(8)) for _ in range(3)]
        run = st.open(self.store(), pinned="1MiB")
        self.addCleanup(run.close)
        optimizer = st.AdamW(params[:2], store=run, update="backward")
        other = st.AdamW(params[2:], store=run)
        inner, errors = optimizer._engine_state.step, []

        def interrupted(updates):
            inner(updates)
            signal.raise_signal(signal.SIGTERM)

        def save(*_):
            for call in (optimizer.state_dict, other.state_dict, optimizer.full_state_dict):
                try:
                    call()
                except spillway.FailedPrecondition as error:
                    errors.append(str(error))

        self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, save))
        with mock.patch.object(optimizer._engine_state, "step", interrupted):
            sum(param.sum() for param in params).backward()
        self.assertEqual(len(errors), 6)
        for error in errors:
            self.assertIn("would have half a step", error)
        optimizer.step()
        self.assertEqual(optimizer.state_dict()["spillway"]["steps"], [[1, 1]])

    def test_after_a_backward_that_is_broken_off_no_state_dict_has_half_a_step(self):
        first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        run = st.open(self.store(), pinned="1MiB")
        self.addCleanup(run.close)
        optimizer = st.AdamW([*first.parameters(), *last.parameters()], store=run, update="backward")
        other = st.AdamW([torch.nn.Parameter(torch.ones(8))], store=run)

        def backward(is_broken_off=False):
            hidden = first(torch.ones(2, 8))
            if is_broken_off:
                hidden.register_hook(lambda _: interrupt())
            last(hidden).sum().backward()

        def break_off():
            with self.assertRaises(KeyboardInterrupt):
                backward(is_broken_off=True)
            check_refused()

        def check_refused():
            for call in (optimizer.state_dict, optimizer.full_state_dict):
                with self.assertRaisesRegex(spillway.FailedPrecondition, "of another step, since the last backward"):
                    call()

        backward()
        check_refused()
        optimizer.step()
        saved, full = optimizer.state_dict(), optimizer.full_state_dict()
        for again in (saved, full):
            break_off()
            optimizer.load_state_dict(again)
            optimizer.zero_grad()
            self.assertEqual(optimizer.state_dict()["spillway"]["steps"], [[1, 1, 1, 1]])
        break_off()
        other.state_dict()
        with self.assertRaisesRegex(spillway.NotFound, "no state dict of an optimizer 'optimizer'"):
            st.last_state_dict(run)
        with self.assertWarnsRegex(UserWarning, "a backward that failed .* one more"):
            optimizer.step()
        self.assertEqual(optimizer.state_dict()["spillway"]["steps"], [[1, 1, 2, 2]])
        self.assertEqual(st.last_state_dict(run)["spillway"]["steps"], [[1, 1, 2, 2]])
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            backward()
            optimizer.step()

    def broken_off(self, work, place, *modules, handler=interrupt):
        """Runs `work`, but calls the handler at the place of this number where Python may run a signal handler within the
        modules: after a call, at the begin of a function and at the end of a loop. Keeps its error, as a notebook does.
        Returns whether there are so many places."""
        left, last, files = place, {}, [module.__file__ for module in modules]

        def trace(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            frame.f_trace_opcodes = True
            if event == "return":
                last.pop(frame, None)  # it would keep the frame's objects alive
            if event == "opcode":
                left -= last.get(frame, "").startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
                last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                if left == 0:
                    last.clear()
                    sys.settrace(None)
                    handler()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt as error:
            self.error = error
        finally:
            sys.settrace(before)
        return left <= 0


if __name__ == "__main__":
    unittest.main()
