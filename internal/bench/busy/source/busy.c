/*
 * busy: call functions at full speed, count every call and check every result.
 *
 *	busy THREADS            obey commands on stdin; end at its end or at SIGTERM
 *	busy THREADS SECONDS    call work() for so long; end then or at SIGTERM
 *
 * Whoever counts the same calls from outside must arrive at the same numbers: each thread counts
 * its own calls, one counter for each key, and nothing is lost or sampled. The exit status is 0
 * only if every result was right.
 *
 * Commands, and the one line that answers each:
 *
 *	run N [FUNCTION [THREADS]]     N calls on each thread    "ran function=work threads=2 calls=20 ns=..."
 *	spin [FUNCTION [THREADS]]      call until told to stop   "spinning function=work threads=2"
 *	stop                           end of spin               "ran ..."
 *	counts [FUNCTION]              counts since the start    "counts function=work calls=20 sizes=480 0=10 1=5 ..."
 *	keys N                         later calls draw from N keys, evenly; 0: the first pattern    "keys 1000"
 *
 * Of "ran": ns is the time from the first start to the last end, cpu_ns and cycles (of the time
 * stamp counter) are summed over the threads. Of "counts": sizes is the sum of the second arguments.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_KEYS  1024
#define TABLE     4096 /* of drawn keys; a power of two */
#define BATCH     1024 /* calls between two looks at the stop flag */

typedef unsigned long function(long key, long size, unsigned long sum);

/* The functions differ in their first instruction, which decides what a kernel uprobe costs. */
__attribute__((noipa)) unsigned long work(long key, long size, unsigned long sum)
{
	return sum * 31 + key + size;
}

#define NAKED(name, head, tail) \
	__asm__(".pushsection .text\n.globl " #name "\n.type " #name ", @function\n.p2align 4\n" \
		#name ":\n.cfi_startproc\n" head \
		"imul $31, %rdx, %rax\nadd %rdi, %rax\nadd %rsi, %rax\n" tail "ret\n" \
		".cfi_endproc\n.size " #name ", . - " #name "\n.popsection\n")

function work_push, work_nop5, work_mov;

/* The kernel emulates a push. */
NAKED(work_push, "push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6, -16\nmov %rsp, %rbp\n",
      "pop %rbp\n.cfi_def_cfa_offset 8\n");
/* From Linux 6.18 on it replaces a nop of five bytes by a call. */
NAKED(work_nop5, ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n", "");
/* It single-steps a mov in a copy. */
NAKED(work_mov, "mov %rdx, %rax\nmov %rax, %rdx\n", "");

/*
 * These three call the one that multiplies: directly, through memory by an instruction of six bytes, and
 * through a register by one of two. A call behind which somebody comes back must not become a jump.
 */
function work_multiplied, work_call, work_call_memory, work_call_register;
NAKED(work_multiplied, "", "");
NAKED(work_call, "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n",
      "add $0, %eax\ncall work_multiplied\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\n");
NAKED(work_call_memory, "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n",
      "add $0, %eax\ncall *pointer(%rip)\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\n");
NAKED(work_call_register, "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n",
      "mov pointer(%rip), %rcx\njmp 1f\n1: call *%rcx\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\n");
__asm__(".pushsection .data.rel.local,\"aw\"\n.p2align 3\npointer: .quad work_multiplied\n.popsection\n");

/*
 * These three call named with a string of 15 letters, by the key: in the program's own data, on the heap, and
 * on the thread's stack.
 */
__attribute__((noipa)) unsigned long named(const char *name, long size, unsigned long sum)
{
	return sum * 31 + (name[14] - 'a') + size;
}

#define NAMES 16
static char static_names[NAMES][16], (*heap_names)[16];
static __thread char (*stack_names)[16];

static void make_names(char (*names)[16])
{
	for (int i = 0; i < NAMES; i++) {
		memcpy(names[i], "request_number_", 14);
		names[i][14] = 'a' + i;
		names[i][15] = 0;
	}
}

/* What named returns is made to agree with the key, of which there may be more. */
static unsigned long name_of(const char (*names)[16], long key, long size, unsigned long sum)
{
	return named(names[key % NAMES], size, sum) + key / NAMES * NAMES;
}

#define NAMED(where) \
	__attribute__((noipa)) unsigned long name_##where(long key, long size, unsigned long sum) \
	{ \
		return name_of((const char (*)[16])where##_names, key, size, sum); \
	}
NAMED(static)
NAMED(heap)
NAMED(stack)

static const struct {
	const char *name;
	function *call;
} functions[] = {
	{ "work", work },
	{ "work_push", work_push },
	{ "work_nop5", work_nop5 },
	{ "work_mov", work_mov },
	{ "work_call", work_call },
	{ "work_call_memory", work_call_memory },
	{ "work_call_register", work_call_register },
	{ "name_static", name_static },
	{ "name_heap", name_heap },
	{ "name_stack", name_stack },
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])

struct worker {
	pthread_t thread;
	int index;
	int wrong;                                   /* a result differed once */
	uint64_t begin_ns, end_ns, cpu_ns, cycles;   /* of the last run */
	uint64_t counts[FUNCTIONS][MAX_KEYS];
} __attribute__((aligned(128)));

static struct worker *workers;
static int worker_count;

/* The job that the workers do. They take it at one barrier and give it back at the other. */
static struct {
	size_t function;
	int threads;
	uint64_t calls;                              /* on each thread; 0: until stop */
	int end;                                     /* the workers are to end */
} job;
static volatile int stop;
static pthread_barrier_t taken, done;

static uint16_t keys[TABLE];
static unsigned key_mask;
static volatile sig_atomic_t terminated;

static long size_of(long key) { return 16L << (key & 7); }

/* draw_from chooses the sequence of keys: 0 is the ruler sequence 0 1 0 2 0 1 0 3 0 1 0 2 0 1 0 4. */
static void draw_from(unsigned n)
{
	uint32_t random = 1;

	key_mask = n ? TABLE - 1 : 15;
	for (unsigned i = 0; i <= key_mask; i++) {
		random = random * 1664525 + 1013904223;
		keys[i] = n ? (random >> 8) % n : (unsigned)__builtin_ctz(i + 1);
	}
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void call(struct worker *w)
{
	function *f = functions[job.function].call;
	uint64_t *count = w->counts[job.function];
	uint64_t left = job.calls ? job.calls : UINT64_MAX;
	unsigned long got = 1, want = 1, wrong = 0;
	unsigned i = 0;

	while (left && !(stop && job.calls == 0)) {
		unsigned n = left < BATCH ? left : BATCH;

		left -= n;
		for (; n; n--) {
			long key = keys[i++ & key_mask], size = size_of(key);

			got = f(key, size, got);
			want = want * 31 + key + size;
			wrong |= got ^ want;
			count[key]++;
		}
	}
	w->wrong |= wrong != 0;
}

static void *work_loop(void *arg)
{
	struct worker *w = arg;
	char names[NAMES][16];

	make_names(names);
	stack_names = names;

	for (;;) {
		uint64_t cpu, cycles;

		pthread_barrier_wait(&taken);
		if (job.end)
			return NULL;
		if (w->index < job.threads) {
			w->begin_ns = clock_ns(CLOCK_MONOTONIC);
			cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
			cycles = __builtin_ia32_rdtsc();
			call(w);
			w->cycles = __builtin_ia32_rdtsc() - cycles;
			w->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
			w->end_ns = clock_ns(CLOCK_MONOTONIC);
		}
		pthread_barrier_wait(&done);
	}
}

static uint64_t total(size_t f, int key)
{
	uint64_t n = 0;

	for (int i = 0; i < worker_count; i++)
		n += workers[i].counts[f][key];
	return n;
}

static uint64_t total_calls(size_t f)
{
	uint64_t n = 0;

	for (int key = 0; key < MAX_KEYS; key++)
		n += total(f, key);
	return n;
}

static int any_wrong(void)
{
	int wrong = 0;

	for (int i = 0; i < worker_count; i++)
		wrong |= workers[i].wrong;
	return wrong;
}

static void print_counts(size_t f)
{
	uint64_t sizes = 0;

	for (int key = 0; key < MAX_KEYS; key++)
		sizes += total(f, key) * size_of(key);
	printf("counts function=%s calls=%lu sizes=%lu", functions[f].name, total_calls(f), sizes);
	for (int key = 0; key < MAX_KEYS; key++)
		if (total(f, key))
			printf(" %d=%lu", key, total(f, key));
	printf("\n");
}

static int spinning;
static uint64_t calls_before;

static void begin(void)
{
	stop = 0;
	calls_before = total_calls(job.function);
	pthread_barrier_wait(&taken);
}

static void finish(void)
{
	uint64_t first = UINT64_MAX, last = 0, cpu = 0, cycles = 0;

	stop = 1;
	spinning = 0;
	pthread_barrier_wait(&done);
	for (int i = 0; i < job.threads; i++) {
		struct worker *w = &workers[i];

		first = w->begin_ns < first ? w->begin_ns : first;
		last = w->end_ns > last ? w->end_ns : last;
		cpu += w->cpu_ns;
		cycles += w->cycles;
	}
	printf("ran function=%s threads=%d calls=%lu ns=%lu cpu_ns=%lu cycles=%lu wrong=%d\n",
	       functions[job.function].name, job.threads, total_calls(job.function) - calls_before,
	       last - first, cpu, cycles, any_wrong());
}

static void complain(const char *what) { printf("error %s\n", what); }

static int find_function(const char *name, size_t *f)
{
	for (*f = 0; *f < FUNCTIONS; ++*f)
		if (strcmp(name, functions[*f].name) == 0)
			return 1;
	complain("no such function");
	return 0;
}

static void obey(const char *line)
{
	char verb[16] = "", name[32] = "work";
	unsigned long n = 0;
	int threads = worker_count;
	size_t f;

	sscanf(line, "%15s", verb);
	if (strcmp(verb, "run") == 0)
		sscanf(line, "%*s %lu %31s %d", &n, name, &threads);
	else if (strcmp(verb, "keys") == 0)
		sscanf(line, "%*s %lu", &n);
	else
		sscanf(line, "%*s %31s %d", name, &threads);

	if (spinning && strcmp(verb, "stop") != 0) {
		complain("spinning: stop first");
	} else if (strcmp(verb, "stop") == 0) {
		if (spinning)
			finish();
		else
			complain("not spinning");
	} else if (strcmp(verb, "keys") == 0) {
		draw_from(n < MAX_KEYS ? n : MAX_KEYS);
		printf("keys %lu\n", n < MAX_KEYS ? n : MAX_KEYS);
	} else if (!find_function(name, &f)) {
		;
	} else if (strcmp(verb, "counts") == 0) {
		print_counts(f);
	} else if (threads < 1 || threads > worker_count) {
		complain("not so many threads");
	} else if (strcmp(verb, "run") == 0 && n > 0) {
		job.function = f, job.threads = threads, job.calls = n;
		begin();
		finish();
	} else if (strcmp(verb, "spin") == 0) {
		job.function = f, job.threads = threads, job.calls = 0;
		begin();
		spinning = 1;
		printf("spinning function=%s threads=%d\n", name, threads);
	} else {
		complain("no such command");
	}
}

static void on_term(int sig) { terminated = sig; }

/* wait_for_input returns 0 at the deadline (in ns; 0: none) or when told to terminate. */
static int wait_for_input(int fd, const sigset_t *mask, uint64_t deadline)
{
	struct pollfd in = { .fd = fd, .events = POLLIN };

	while (!terminated) {
		struct timespec left = { 0 };
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		if (deadline && now >= deadline)
			return 0;
		left.tv_sec = (deadline - now) / 1000000000;
		left.tv_nsec = (deadline - now) % 1000000000;
		if (ppoll(&in, 1, deadline ? &left : NULL, mask) > 0)
			return 1;
	}
	return 0;
}

static void obey_all(const sigset_t *mask)
{
	char buf[256];
	size_t have = 0;

	while (wait_for_input(0, mask, 0)) {
		ssize_t n = read(0, buf + have, sizeof buf - 1 - have);
		char *line = buf, *end;

		if (n <= 0)
			return;
		have += n;
		buf[have] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			*end = 0;
			obey(line);
		}
		have -= line - buf;
		memmove(buf, line, have);
		if (have == sizeof buf - 1)
			have = 0; /* a line without end: drop it */
	}
}

static void start_workers(void)
{
	pthread_barrier_init(&taken, NULL, worker_count + 1);
	pthread_barrier_init(&done, NULL, worker_count + 1);
	workers = aligned_alloc(128, worker_count * sizeof *workers);
	if (!workers)
		abort();
	memset(workers, 0, worker_count * sizeof *workers);
	for (int i = 0; i < worker_count; i++) {
		workers[i].index = i;
		if (pthread_create(&workers[i].thread, NULL, work_loop, &workers[i])) {
			perror("pthread_create");
			exit(2);
		}
	}
}

static int sum_up(void)
{
	int wrong;

	if (spinning)
		finish();
	job.end = 1;
	pthread_barrier_wait(&taken);
	for (int i = 0; i < worker_count; i++)
		pthread_join(workers[i].thread, NULL);
	for (size_t f = 0; f < FUNCTIONS; f++)
		if (total_calls(f))
			print_counts(f);
	wrong = any_wrong();
	printf(wrong ? "FAILED: a result was wrong\n" : "ok\n");
	return wrong;
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = on_term };
	sigset_t term, old;
	double seconds = argc > 2 ? atof(argv[2]) : 0;

	worker_count = argc > 1 ? atoi(argv[1]) : 1;
	if (worker_count < 1 || argc > 3 || seconds < 0) {
		fprintf(stderr, "usage: busy THREADS [SECONDS]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, &old); /* only ppoll lets it in */
	sigaction(SIGTERM, &act, NULL);
	draw_from(0);
	heap_names = malloc(sizeof static_names);
	make_names(static_names);
	make_names(heap_names);
	start_workers();
	printf("ready pid=%d threads=%d\n", getpid(), worker_count);
	if (seconds > 0) {
		char line[] = "spin";

		obey(line);
		wait_for_input(-1, &old, clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9));
	} else {
		obey_all(&old);
	}
	return sum_up();
}
