"""The rules of serving in plain Python, with lists and dicts: what the compiled loop is held to."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import ceil, inf, log2, sqrt

import numpy as np

from simulator.serving.loop import ROUTERS
from simulator.serving.schedulers import LATE, SCHEDULERS
from simulator.serving.surface import Batch

NAME_OF_SCHEDULER = {number: name for name, number in SCHEDULERS.items()}
NAME_OF_ROUTER = {number: name for name, number in ROUTERS.items()}


@dataclass(eq=False)
class Request:
    """A request, and all that is known of it."""

    number: int
    arrival: float
    prompt: int
    output: int
    session: int
    priority: int
    units: list[int]
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    plan: int = 0
    steps: int = 0
    unread: int = 0
    found: int = 0
    batch: object = None
    worker: "Worker | None" = None
    target: "Worker | None" = None
    is_moving: bool = False
    ahead: int = 0
    shared: set[int] = field(default_factory=set)
    times: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated

    @property
    def missing(self) -> int:
        return self.tokens - self.computed


class Worker:
    """A queue, running requests, and blocks of memory, some of which keep prefixes."""

    def __init__(self, number, pool):
        self.number, self.pool, self.rules = number, pool, pool.rules
        self.scheduler = NAME_OF_SCHEDULER[pool.rules.scheduler]
        self.queue, self.inbox, self.awaiting, self.running = [], [], [], []
        self.free = pool.rules.blocks
        self.peak = self.expected = self.preemptions = self.iterations = 0
        self.unread = self.loaded = self.waited = 0
        self.is_down = False
        self.references: dict[int, int] = {}
        self.unused: OrderedDict[tuple[str, int], int] = OrderedDict()
        self.host: OrderedDict[int, None] = OrderedDict()

    # Blocks

    @property
    def unit_blocks(self):
        return self.rules.unit // self.rules.block

    @property
    def kept(self):
        return sum(self.unused.values())

    def blocks_of(self, tokens):
        return ceil(tokens / self.rules.block)

    def take(self, before, tokens):
        """Take the blocks of ``tokens`` beyond those held before: None if there are too few."""
        more = max(0, self.blocks_of(tokens) - before)
        if more > self.free:
            return None
        self.free -= more
        while self.kept > self.free:
            key, blocks = next(iter(self.unused.items()))
            kind, name = key
            lacking = self.kept - self.free
            if kind == "request" and blocks > lacking:
                self.unused[key] -= lacking
                continue
            del self.unused[key]
            if kind == "unit":
                del self.references[name]
                if self.rules.host_units:
                    self.host.pop(name, None)
                    if len(self.host) >= self.rules.host_units:
                        self.host.popitem(last=False)
                    self.host[name] = None
        return more

    def hold(self, request, tokens):
        more = self.take(request.blocks, tokens)
        request.blocks += more or 0
        return more is not None

    def release(self, request):
        """Free a request's blocks: those without a name first, then from its last unit on."""
        loose = request.blocks - len(request.shared) * self.unit_blocks
        self.free += loose
        key = ("request", request.number)
        if self.rules.unit and loose > 0:
            self.unused[key] = self.unused.pop(key, 0) + loose
        for unit in reversed(request.units):
            if unit in request.shared:
                self.references[unit] -= 1
                if not self.references[unit]:
                    self.unused["unit", unit] = self.unit_blocks
                    self.free += self.unit_blocks
        request.shared.clear()
        request.blocks = 0

    def name(self, request, first, last):
        """Let others find units that have been computed; free the second of two copies."""
        for unit in request.units[first:last]:
            if unit in request.shared:
                continue
            count = self.references.get(unit)
            if count is None:
                self.references[unit] = 1
                request.shared.add(unit)
            elif self.rules.merges and count:
                self.references[unit] += 1
                request.shared.add(unit)
                self.free += self.unit_blocks

    def cached(self, request):
        """Return a prompt's first units that are on the device, and those behind on the host."""
        if not self.rules.unit:
            return [], []
        here = list(takewhile(lambda unit: unit in self.references, request.units))
        behind = list(takewhile(lambda unit: unit in self.host, request.units[len(here) :]))
        return here, behind

    def spared(self, units, tokens):
        """Return the tokens that so many units spare: never the last, which must be computed."""
        block = self.rules.block
        return min(units * self.rules.unit, (tokens - 1) // block * block)

    def unread_of(self, request):
        here, _ = self.cached(request)
        return request.prompt - (self.spared(len(here), request.prompt) if self.rules.unit else 0)

    # Queue

    def accept_caches(self):
        """Hold seats and blocks for caches, in order; return the requests whose caches may come."""
        accepted = []
        while self.awaiting and len(self.running) + self.expected < self.rules.sequences:
            request = self.awaiting[0]
            output = request.output if self.rules.reserve == 2 else 1
            blocks = self.take(0, request.prompt + output)
            if blocks is None:
                break
            request.ahead = blocks
            self.expected += 1
            accepted.append(self.awaiting.pop(0))
        return accepted

    def look_for_requests(self, poll):
        if self.running and self.iterations < poll:
            return
        self.iterations = 0
        for request in self.inbox:
            if request.is_moving:
                request.is_moving = False
                self.expected -= 1
                self.running.append(request)
            else:
                self.join(request)
        self.inbox.clear()

    def join(self, request):
        """Queue behind all that are as urgent."""
        behind = [each for each in self.queue if each.priority > request.priority]
        self.queue.insert(len(self.queue) - len(behind), request)

    def demote_late(self, now):
        while self.queue:
            request = self.queue[0]
            is_late = now - request.times["arrived"] > self.rules.patience and not request.generated
            if not is_late or request.priority >= LATE:
                break
            self.queue.pop(0)
            request.priority += LATE
            self.join(request)

    def preempt(self):
        """Send the least urgent back, the latest of equals; what it had computed is lost."""
        idle = [request for request in self.running if not request.batch]
        victim = max(reversed(idle), key=lambda request: request.priority)
        returned, victim.plan, victim.computed = victim.plan, 0, 0
        self.running.remove(victim)
        self.release(victim)
        before = [each for each in self.queue if each.priority < victim.priority]
        self.queue.insert(len(before), victim)
        self.preemptions += 1
        return victim, returned

    def evacuate(self):
        """Give up all requests and memory; return the requests."""
        for request in self.running:
            self.release(request)
            request.computed = request.plan = 0
            request.batch = None
        lost = [*self.running, *self.queue, *self.inbox]
        for kept in (self.running, self.queue, self.inbox, self.references, self.unused, self.host):
            kept.clear()
        self.unread = 0
        for request in lost:
            request.unread = 0
        return lost

    # Schedulers

    def batch(self, slot, poll):
        """Put what is planned into a batch: one, or none if nothing is."""
        planned = [request for request in self.running if request.plan and not request.batch]
        if not planned:
            return []
        for request in planned:
            request.batch = slot
        decodes = [each for each in planned if each.plan == 1 and each.computed >= each.prompt]
        chunks = [request for request in planned if request not in decodes]
        self.iterations += poll if chunks else 1
        return [
            Batch(
                1 + self.rules.drafts,
                len(decodes),
                sum((request.computed + 1.0 for request in decodes), 0.0),
                len(chunks),
                float(sum(request.plan for request in chunks)),
                sum((each.plan * (each.computed + each.plan / 2) for each in chunks), 0.0),
            )
        ]

    def plan(self, holds):
        tokens = self.rules.tokens
        if self.scheduler == "vllm":
            left, preempted = self.go_on([r for r in self.running if not r.batch], tokens)
            self.admit(0 if preempted else left)
        elif self.scheduler == "sglang":
            if not self.admit(tokens):
                self.go_on(self.decoding(), tokens, most=1)
        elif self.scheduler == "static":
            if not self.running:
                self.admit(tokens)
            else:
                for request in self.running:
                    if not request.batch:
                        request.plan = min(request.missing, tokens)
                        self.hold(request, request.computed + request.plan)
                        tokens -= request.plan
        else:
            left, _ = self.go_on(self.decoding(), tokens, most=1)
            holds = holds or (self.rules.waits and self.waits_for_more(tokens - left))
            self.admit(0 if holds else left)
        self.peak = max(self.peak, self.rules.blocks - self.free)

    def waits_for_more(self, decodes):
        sums = [decodes + each for each in accumulate(request.missing for request in self.queue)]
        fuller = max([each for each in sums if each <= self.rules.tokens], default=decodes)
        if decodes and decodes < fuller < self.rules.fills and self.waited < self.rules.waits:
            self.waited += 1
            return True
        self.waited = 0
        return False

    def decoding(self):
        return [
            request
            for request in self.running
            if not request.batch and request.computed >= request.prompt and request.missing == 1
        ]

    def go_on(self, candidates, left, most=inf):
        preempted = False
        while candidates and left > 0:
            request = candidates[0]
            planned = min(request.missing, left, most)
            if self.hold(request, request.computed + planned):
                request.plan = planned
                left -= planned
                candidates.pop(0)
                continue
            victim, returned = self.preempt()
            preempted = True
            left += returned
            if victim in candidates:
                candidates.remove(victim)
        return left, preempted

    def admit(self, left):
        """Continue partly read prompts, then admit in order until one does not fit."""
        budget, rules = left, self.rules
        if self.scheduler != "vllm":
            for request in self.running:
                unread = request.computed < request.prompt or request.missing > 1
                if unread and not request.plan:
                    request.plan = min(request.missing, left)
                    left -= request.plan
        outstanding = self.outstanding() if rules.reserve == 2 else 0
        while self.queue and left > 0 and len(self.running) + self.expected < rules.sequences:
            request = self.queue[0]
            here, behind = self.cached(request)
            computed = self.spared(len(here) + len(behind), request.tokens) if here + behind else 0
            missing = request.tokens - computed
            if not rules.chunked and missing > left and left != rules.tokens:
                break
            planned = min(missing, left) if rules.chunked else missing
            tokens = (computed + planned, request.tokens, request.tokens + request.output)
            whole = self.blocks_of(tokens[rules.reserve])
            held = sum(self.references[unit] > 0 for unit in here) * self.unit_blocks
            if whole - held + outstanding > self.free:
                break
            self.take_cached(request, here, behind, computed)
            self.hold(request, request.tokens if rules.reserve else computed + planned)
            if rules.reserve == 2:
                outstanding += max(0, whole - request.blocks)
            self.running.append(self.queue.pop(0))
            request.plan = planned
            left -= planned
        return left < budget

    def outstanding(self):
        """Count the blocks that running requests may still take."""
        whole = [self.blocks_of(request.prompt + request.output) for request in self.running]
        held = [request.blocks for request in self.running]
        return sum(max(0, most - has) for most, has in zip(whole, held, strict=True))

    def take_cached(self, request, here, behind, computed):
        """Hold the units that are on the device, and copy those behind them from the host."""
        is_new = not request.generated
        for unit in here:
            self.free -= self.unused.pop(("unit", unit), 0)
            self.references[unit] += 1
        request.shared.update(here)
        request.blocks += len(here) * self.unit_blocks
        if here and is_new:
            request.found = self.spared(len(here), request.prompt)
        request.computed = computed
        if behind:
            self.loaded += computed - self.spared(len(here), request.tokens)
            last = max(len(here), computed // self.rules.unit)
            for unit in request.units[len(here) : last]:
                del self.host[unit]
            self.hold(request, computed)
            self.name(request, len(here), last)
            request.found = computed if is_new else request.found


@dataclass(eq=False)
class Slot:
    """A batch of an instance that may be in flight; an instance has one for each stage."""

    workers: list[Worker]
    pool: object
    stages: list[float]
    ends: float = inf
    begun: float = 0.0
    held: int = 0

    def holds_prompts(self):
        """Whether ranks wait for each other to have prompts: for so many iterations at most."""
        prompts = [bool(worker.queue or worker.inbox) for worker in self.workers]
        idle = [not worker.running for worker in self.workers]
        most = self.pool.rules.balance
        self.held = 0 if all(prompts) or any(idle) else (self.held + 1) % most
        return self.held > 0


class Fleet:
    """Workers, what they are asked, and a clock."""

    def __init__(self, requests, fleet, client, units=None, delay=0.0, outages=()):
        self.fleet, self.client, self.delay = fleet, client, delay
        self.requests = [
            Request(number, *row, list(units[number]) if units else [])
            for number, row in enumerate(zip(*columns_of(requests), strict=True))
        ]
        self.outages = sorted(outages, key=lambda row: (row[2], *row))
        self.workers: list[Worker] = []
        self.slots: list[Slot] = []
        for pool in (fleet.first, fleet.second):
            for _ in range(pool.workers // pool.width):
                own = [Worker(len(self.workers) + k, pool) for k in range(pool.width)]
                self.workers += own
                stages = [0.0] * pool.stages
                self.slots += [Slot(own, pool, stages) for _ in range(pool.stages)]
        self.first = self.workers[: fleet.first.workers]
        self.second = self.workers[fleet.first.workers :]
        self.now = 0.0
        self.coming = self.turn = self.done = self.restarted = 0
        self.homes: dict[int, Worker] = {}
        self.flights: list[tuple[float, int]] = []
        self.gaps: list[float] = []
        self.log: list[tuple[float, float, float, int]] = []
        self.times = {"decode_time": 0.0, "prefill_time": 0.0}
        self.computed_tokens = self.decoded_tokens = self.loaded_tokens = 0
        self.is_stuck = False

    def serve(self):
        while True:
            self.step()
            sent = [(self.now + self.delay, number) for number in self.sent]
            self.flights = sorted(self.flights + sent)
            if self.deliver_due() or sent:
                continue
            if self.done == len(self.requests):
                return self
            due = [slot.ends for slot in self.slots]
            due += [time for _, _, time in self.outages[:1]]
            if not self.client.concurrency and self.coming < len(self.requests):
                due.append(max(self.requests[self.coming].arrival, self.now))
            coming, landing = min(due), min([time for time, _ in self.flights], default=inf)
            if coming == landing == inf:
                self.is_stuck = True
                return self
            if landing < coming:
                self.now = landing
                self.deliver_due()
            else:
                self.now = coming

    def deliver_due(self):
        due = [number for time, number in self.flights if time <= self.now]
        self.flights = self.flights[len(due) :]
        for number in due:
            request = self.requests[number]
            request.worker.release(request)
            request.blocks, request.worker = request.ahead, request.target
            request.times["delivered"] = self.now
            request.target.inbox.append(request)
        return bool(due)

    def step(self):
        for slot in self.slots:
            if slot.ends <= self.now:
                self.end(slot)
        while self.outages and self.outages[0][2] <= self.now:
            self.switch(*self.outages.pop(0)[:2])
        self.arrive()
        self.sent: list[int] = []
        for slot in self.slots:
            if slot.ends == inf and not slot.workers[0].is_down:
                self.start(slot)

    def arrive(self):
        for request in self.requests[self.coming :]:
            if self.client.concurrency:
                is_due, instant = self.coming < self.done + self.client.concurrency, self.now
            else:
                is_due, instant = request.arrival <= self.now, request.arrival
            if not is_due:
                break
            request.times["arrived"] = instant
            self.coming += 1
            self.send(request)

    def send(self, request):
        request.worker = self.route(request)
        if NAME_OF_ROUTER[self.fleet.router] == "prefix":
            request.unread = request.worker.unread_of(request)
            request.worker.unread += request.unread
        request.worker.inbox.append(request)

    def route(self, request):
        router, rules = NAME_OF_ROUTER[self.fleet.router], self.fleet.first.rules
        up = [worker for worker in self.first if not worker.is_down]
        if router == "round-robin":
            width = self.fleet.first.width
            instances = len(self.first) // width
            for _ in range(instances):
                worker = self.first[self.turn % instances * width + self.turn // instances % width]
                self.turn += 1
                if not worker.is_down:
                    break
            return worker
        if router == "prefix":
            return min(
                up or self.first[:1],
                key=lambda worker: (
                    (worker.unread_of(request) + worker.unread) / rules.block
                    + rules.blocks
                    - worker.free
                ),
            )
        if router == "session" and request.session >= 0:
            home = self.homes.get(request.session)
            if home is None or home.is_down:
                self.homes[request.session] = least_loaded(self.first)
            return self.homes[request.session]
        return least_loaded(self.first)

    def switch(self, instance, down):
        width = self.fleet.first.width
        workers = self.first[instance * width : (instance + 1) * width]
        lost = []
        for worker in workers:
            worker.is_down = bool(down)
            if down:
                self.restarted += len(worker.running)
                lost += worker.evacuate()
        for slot in self.slots:
            if down and slot.workers == workers:
                slot.ends = inf
                slot.stages[:] = [self.now] * len(slot.stages)
        for request in lost:
            self.send(request)

    def start(self, slot):
        pool, rules = slot.pool, slot.pool.rules
        holds = bool(rules.balance) and slot.holds_prompts()
        batches = []
        for worker in slot.workers:
            self.sent += [request.number for request in worker.accept_caches()]
            worker.look_for_requests(self.client.poll)
            if rules.patience:
                worker.demote_late(self.now)
            if worker.running or worker.queue:
                worker.plan(holds)
                batches += worker.batch(slot, self.client.poll)
        loaded = [worker.loaded for worker in slot.workers]
        self.loaded_tokens += sum(loaded)
        for worker in slot.workers:
            worker.loaded = 0
        if batches:
            chunks = sum(batch.chunks for batch in batches)
            self.computed_tokens += sum(batch.decodes + batch.chunk_tokens for batch in batches)
            device = pool.host.kernels * device_time(pool, batches) + max(loaded) * pool.copy
            running = max(batch.decodes + batch.chunks for batch in batches)
            least = pool.host.least + pool.host.response * running / self.client.first_chunk
            time = device + pool.host.step + (pool.host.prefill if chunks else 0.0)
            time = max(time, least)
            self.times["prefill_time" if chunks else "decode_time"] += time / pool.stages
            slot.begun = slot.ends = self.now
            for stage, free in enumerate(slot.stages):
                slot.ends = slot.stages[stage] = max(slot.ends, free) + time / pool.stages
            self.log.append((self.now, slot.ends, max(map(tokens_of, batches)), chunks))

    def end(self, slot):
        slot.ends = inf
        hands_on = bool(self.second) and slot.workers[0] in self.first
        for worker in slot.workers:
            for request in list(worker.running):
                if request.batch is not slot:
                    continue
                request.batch = None
                request.times.setdefault("scheduled", slot.begun)
                before, request.plan, planned = request.computed, 0, request.plan
                request.computed += planned
                if worker.rules.unit and before < request.prompt:
                    unit = worker.rules.unit
                    worker.name(request, before // unit, request.computed // unit)
                if request.computed < request.tokens:
                    continue
                worker.unread -= request.unread
                request.unread = 0
                self.generate(worker, request, hands_on)

    def generate(self, worker, request, hands_on):
        new, accepted = 1, worker.rules.accepted
        if request.generated:
            new = int((request.steps + 1) * accepted) - int(request.steps * accepted)
            request.steps += 1
        new = min(new, request.output - request.generated)
        request.generated += new
        request.computed += new - 1
        self.decoded_tokens += new
        if "emitted" in request.times:
            self.gaps.append(self.now - request.times["emitted"])
        request.times["emitted"] = self.now
        is_over = request.generated >= request.output
        made = request.steps + 1 if self.client.iterations else request.generated
        if is_over or (made >= self.client.first_chunk and not hands_on):
            request.times.setdefault("first", self.now)
        if is_over:
            request.times["last"] = self.now
            worker.running.remove(request)
            worker.release(request)
            self.done += 1
        elif hands_on:
            worker.running.remove(request)
            request.target = least_loaded(self.second)
            request.is_moving = True
            request.times["handed"] = self.now
            request.target.awaiting.append(request)


def least_loaded(workers):
    """Return the worker with the least load, of which a waiting request is four times a running."""
    up = [worker for worker in workers if not worker.is_down]
    return min(
        up or workers[:1],
        key=lambda worker: (
            4 * len(worker.queue + worker.inbox + worker.awaiting)
            + len(worker.running)
            + worker.expected
        ),
    )


def columns_of(requests):
    priority = [0] * len(requests.prompt) if requests.priority is None else requests.priority
    return [np.asarray(column).tolist() for column in (*requests[:4], priority)]


def tokens_of(batch):
    return batch.decodes * batch.width + batch.chunk_tokens


def device_time(pool, batches):
    """Return what the slowest rank takes, and the joint work of all (s)."""
    surface, rules, tokens = pool.surface, pool.rules, list(map(tokens_of, batches))
    chunks = sum(batch.chunks for batch in batches)
    alone = [
        iteration_time(surface, batch) - shared_time(surface, count, batch.chunks)
        for batch, count in zip(batches, tokens, strict=True)
    ]
    pads = max(tokens) <= rules.padded and (rules.pads_chunks or not chunks)
    return max(alone) + shared_time(
        surface, max(tokens) if pads else sum(tokens) / pool.width, chunks
    )


def iteration_time(surface, batch):
    """Return what the parts of an iteration take together (s)."""
    tokens = int(tokens_of(batch))
    table = surface.eager if batch.chunks else surface.tokens
    time = table[min(tokens, len(table) - 1)] * max(1.0, tokens / (len(table) - 1))
    sequences = batch.decodes * batch.width + batch.chunks
    time += surface.sequences[min(sequences, len(surface.sequences) - 1)]
    if batch.decodes:
        table = surface.beside if batch.chunks else surface.decodes
        time += read_grid(table, batch.decodes, batch.decode_context / batch.decodes)
    if batch.chunks:
        pairs = batch.chunk_pairs / batch.chunks
        time += read_grid(surface.chunks, batch.chunks, sqrt(2 * pairs))
        new = batch.chunk_tokens / batch.chunks
        time += read_grid(
            surface.windowed, batch.chunks, length_in_window(surface.window, new, pairs)
        )
    return time


def length_in_window(window, new, pairs):
    """Return the length of a prompt whose queries see as many tokens of a window as the chunk's.

    Behind ``before`` tokens ``new`` queries see new (before + new / 2) without a window.
    """
    if not window:
        return new
    before = max(0.0, pairs / new - new / 2)

    def seen(length):
        return length**2 / 2 if length <= window else window * (length - window / 2)

    pairs = seen(before + new) - seen(before)
    return sqrt(2 * pairs) if pairs <= seen(window) else pairs / window + window / 2


def read_grid(table, row, column):
    """Return a time from points at 1, sqrt(2), 2, ...: linear between them, and a power beyond."""
    rows, columns = (2 ** (np.arange(count) / 2) for count in table.shape)
    time = np.interp(row, rows, [np.interp(column, columns, line) for line in table])
    before, last = table[-1, -2:]
    if column > columns[-1] and before:
        time *= (last / before) ** (2 * log2(column / columns[-1]))
    return time


def shared_time(surface, tokens, chunks):
    """Return the joint work of ranks with so many tokens each (s)."""
    table = surface.shared_eager if chunks else surface.shared
    last = len(table) - 1
    return table[min(ceil(tokens), last)] * max(1.0, tokens / last) if len(table) else 0.0
