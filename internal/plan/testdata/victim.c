// victim lets its own text, and that of its libraries, be patched, and shows
// whether it still works. It obeys commands on standard input and answers on
// standard output:
//
//   'M' address length bytes    map memory there and fill it
//   'W' address length bytes    overwrite text
//   'T' address count           where {from, to} pairs lie, sorted by from
//   'J' address                 jump there: answers signal and PC
//   'C' 0                       answers how many traps were sent on
//   'R' alone                   do the work, unless alone is 1 also what starts
//                               processes: answers with its text
//
// Everything that handles commands and signals is in this file's obey section
// and uses no library, so that it works whatever is patched.
#define _GNU_SOURCE
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <regex.h>
#include <search.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <wchar.h>

#define OBEY __attribute__((section("obedient"), noinline))

static OBEY long sys(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return n;
}

static OBEY void die(int code)
{
	sys(SYS_exit_group, code, 0, 0, 0, 0, 0);
	__builtin_trap();
}

static OBEY int take(void *p, long n)
{
	while (n > 0) {
		long got = sys(SYS_read, 0, (long)p, n, 0, 0, 0);
		if (got <= 0)
			return 0;
		p = (char *)p + got;
		n -= got;
	}
	return 1;
}

static OBEY void give(const void *p, long n)
{
	while (n > 0) {
		long put = sys(SYS_write, 1, (long)p, n, 0, 0, 0);
		if (put <= 0)
			die(3);
		p = (const char *)p + put;
		n -= put;
	}
}

struct pair {
	uint64_t from, to;
};

static const struct pair *pairs;
static uint64_t pair_count;
static volatile uint64_t traps;
static volatile int jumping;
static ucontext_t home;
static uint64_t report[2];

static OBEY uint64_t moved(uint64_t pc)
{
	uint64_t lo = 0, hi = pair_count;
	while (lo < hi) {
		uint64_t mid = (lo + hi) / 2;
		if (pairs[mid].from < pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < pair_count && pairs[lo].from == pc ? pairs[lo].to : 0;
}

static OBEY void copy(void *to, const void *from, long n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

// on_trap sends a trap at a boundary on to the moved instruction.
static OBEY void on_trap(int sig, siginfo_t *si, void *context)
{
	ucontext_t *u = context;
	greg_t *regs = u->uc_mcontext.gregs;
	(void)si;
	if (jumping == 1) { // the int3 of jump()
		copy(&home, u, sizeof home);
		regs[REG_RIP] = report[1];
		jumping = 2;
		return;
	}
	if (jumping == 2) {
		report[0] = sig;
		report[1] = regs[REG_RIP];
		copy(regs, home.uc_mcontext.gregs, sizeof home.uc_mcontext.gregs);
		jumping = 0;
		return;
	}
	uint64_t to = moved(sig == SIGTRAP ? regs[REG_RIP] - 1 : regs[REG_RIP]);
	if (!to)
		die(100 + sig);
	__atomic_add_fetch(&traps, 1, __ATOMIC_RELAXED);
	regs[REG_RIP] = to;
}

__asm__(".pushsection obedient,\"ax\"\nrestorer: mov $15,%eax\nsyscall\n.popsection");
void restorer(void) __asm__("restorer");

struct kernel_sigaction {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static OBEY void handle(int sig)
{
	struct kernel_sigaction sa = {on_trap, SA_SIGINFO | SA_NODEFER | 0x04000000, restorer, 0};
	if (sys(SYS_rt_sigaction, sig, (long)&sa, 0, 8, 0, 0))
		die(4);
}

static OBEY void jump(uint64_t to)
{
	report[1] = to;
	jumping = 1;
	__asm__ volatile("int3" ::: "memory", "cc");
	give(report, sizeof report);
}

static OBEY void map(uint64_t to, uint64_t n)
{
	if ((uint64_t)sys(SYS_mmap, to, n, PROT_READ | PROT_WRITE | PROT_EXEC,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != to || !take((void *)to, n))
		die(5);
}

static OBEY void overwrite(uint64_t to, uint64_t n)
{
	uint64_t page = to & -4096ul, end = (to + n + 4095) & -4096ul;
	if (sys(SYS_mprotect, page, end - page, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0) || !take((void *)to, n))
		die(6);
}

static char text[1 << 16];
static size_t text_len;

static void work(int alone);

static OBEY void obey(void)
{
	struct { uint64_t what, at, len; } c;
	while (take(&c, sizeof c)) {
		switch (c.what) {
		case 'M': map(c.at, c.len); break;
		case 'W': overwrite(c.at, c.len); break;
		case 'T': pairs = (void *)c.at; pair_count = c.len; break;
		case 'J': jump(c.at); break;
		case 'C': report[0] = traps; report[1] = 0; give(report, sizeof report); break;
		case 'R':
			text_len = 0;
			work(c.at);
			report[0] = text_len;
			give(report, 8);
			give(text, text_len);
			break;
		default: die(7);
		}
	}
}

// From here on, the work: as much of the library as is deterministic.

static void say(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	text_len += vsnprintf(text + text_len, sizeof text - text_len, format, ap);
	va_end(ap);
}

static int by_number(const void *x, const void *y)
{
	int a = *(const int *)x, b = *(const int *)y;
	return (a > b) - (a < b);
}

static void work_numbers(void)
{
	int v[200];
	srand(7);
	srandom(7);
	srand48(7);
	for (int i = 0; i < 200; i++)
		v[i] = rand() % 1000;
	qsort(v, 200, sizeof *v, by_number);
	int key = v[77], *found = bsearch(&key, v, 200, sizeof *v, by_number);
	say("sort %d %d %d %d\n", v[0], v[100], v[199], *found);
	say("strto %ld %lu %g %a\n", strtol("-0x7fz", NULL, 0), strtoul("777", NULL, 8), strtod("1.5e-7x", NULL), strtod("0x1.8p3", NULL));
	say("math %.17g %.17g %.17g %.17g %.17g\n", sin(1.25), pow(1.1, 33.3), exp(-2.5), atan2(1, -3), cbrt(29));
	say("math %.17g %.17g %.17g %d\n", tgamma(4.5), fmod(1e10, 7.7), hypot(3, 4), (int)lround(2.5));
	div_t d = div(-17, 5);
	say("div %d %d %lld\n", d.quot, d.rem, llabs(-5ll));
	for (int i = 0; i < 5; i++)
		say("%ld ", random() % 100 + lrand48() % 10);
	say("\n%s %s\n", "fmt", "%");
	say("%5d|%-8s|%08.3f|%+.2e|%#x|%c|%10.4s|%ju|%zd|%Lg\n", 42, "left", 3.14159, 12345.678, 255, 'q', "truncate", (uintmax_t)-1, (ssize_t)-9, 1.25L);
}

static void work_strings(void)
{
	char a[400], b[400];
	for (int n = 0; n < 300; n += 7) {
		memset(a, 'a' + n % 26, n);
		a[n] = 0;
		strcpy(b, a);
		strcat(b, "tail");
		say("%zu%zd%d", strlen(b), strstr(b, "tail") - b, memcmp(a, b, n) + !!strcmp(a, b) + strncmp(a, b, n / 2));
		memmove(b + 3, b, n + 1);
		say("%zd ", (char *)memchr(b, 't', sizeof b) - b);
	}
	char list[] = "one,two;three,,four", *save, *word;
	for (word = strtok_r(list, ",;", &save); word; word = strtok_r(NULL, ",;", &save))
		say("[%s]", word);
	wchar_t w[64];
	size_t wide = mbstowcs(w, "wide text", 64);
	say("\n%zu %zu %d\n", wide, wcslen(w), wcscmp(w, L"wide"));
	say("%zu %zu %s %d\n", strspn("aabbc", "ab"), strcspn("xyz,", ","), strpbrk("key=value", "="), strcasecmp("HeLLo", "hello"));
	say("%s\n", strerror(ENOENT));
	char *dup = strdup("copy"), *grown = realloc(dup, 5000);
	say("%s %d\n", grown, fnmatch("*.[ch]", "plan.c", 0));
	free(grown);
}

static void work_library(void)
{
	regex_t re;
	regmatch_t m[3];
	int err = regcomp(&re, "([a-z]+)([0-9]*)$", REG_EXTENDED);
	say("regex %d %d", err, regexec(&re, "xyz: abc123", 3, m, 0));
	say(" %d %d %d\n", (int)m[0].rm_so, (int)m[1].rm_eo, (int)m[2].rm_so);
	regfree(&re);
	time_t when = 1700000000;
	struct tm tm;
	char buf[100];
	setenv("TZ", "UTC", 1);
	tzset();
	gmtime_r(&when, &tm);
	strftime(buf, sizeof buf, "%Y-%m-%d %H:%M:%S %j %A", &tm);
	say("%s %ld %s\n", buf, (long)mktime(&tm), getenv("TZ"));
	char *mem = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&mem, &len);
	for (int i = 0; i < 300; i++)
		fprintf(f, "%d,", i * i);
	fclose(f);
	f = fmemopen(mem, len, "r");
	int sum = 0, x;
	while (fscanf(f, "%d,", &x) == 1)
		sum += x;
	fclose(f);
	free(mem);
	say("stream %zu %d\n", len, sum);
	void *tree = NULL;
	int keys[] = {5, 3, 8, 1, 4};
	for (int i = 0; i < 5; i++)
		tsearch(&keys[i], &tree, by_number);
	say("tree %d\n", **(int **)tfind(&keys[2], &tree, by_number));
	for (int i = 0; i < 5; i++)
		tdelete(&keys[i], &tree, by_number);
	say("locale %s\n", setlocale(LC_ALL, "C"));
	void *blocks[64];
	for (int i = 0; i < 64; i++)
		blocks[i] = calloc(i + 1, 100 * (i % 9 + 1));
	for (int i = 0; i < 64; i++)
		free(blocks[i * 37 % 64]);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static int shared;

static void *thread(void *arg)
{
	for (int i = 0; i < 200; i++) {
		pthread_mutex_lock(&lock);
		shared += (int)(intptr_t)arg;
		pthread_cond_broadcast(&turn);
		pthread_mutex_unlock(&lock);
	}
	return (void *)((intptr_t)arg * 2);
}

static void work_threads(void)
{
	pthread_t t[4];
	shared = 0;
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, thread, (void *)(intptr_t)(i + 1));
	pthread_mutex_lock(&lock);
	while (shared < 2000)
		pthread_cond_wait(&turn, &lock);
	pthread_mutex_unlock(&lock);
	intptr_t sum = 0;
	for (int i = 0; i < 4; i++) {
		void *r;
		pthread_join(t[i], &r);
		sum += (intptr_t)r;
	}
	say("threads %d %d\n", shared, (int)sum);
}

static volatile sig_atomic_t got;

static void on_user(int sig) { got += sig; }

static void work_processes(void)
{
	jmp_buf env;
	volatile int times = 0;
	if (setjmp(env) < 3) {
		times++;
		longjmp(env, times);
	}
	signal(SIGUSR1, on_user);
	got = 0;
	raise(SIGUSR1);
	say("jumps %d signal %d\n", times, (int)got);
	int status = system("exit 3");
	say("system %d", WEXITSTATUS(status));
	char *argv[] = {"sh", "-c", "exit 5", NULL};
	pid_t pid;
	if (posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) == 0)
		waitpid(pid, &status, 0);
	say(" spawn %d", WEXITSTATUS(status));
	pid = fork();
	if (pid == 0)
		_exit(6);
	waitpid(pid, &status, 0);
	say(" fork %d", WEXITSTATUS(status));
	FILE *p = popen("echo piped", "r");
	char line[20] = "";
	if (!fgets(line, sizeof line, p))
		line[0] = 0;
	pclose(p);
	say(" %s", line);
}

static void work(int alone)
{
	work_numbers();
	work_strings();
	work_library();
	work_threads();
	if (!alone)
		work_processes();
}

int main(void)
{
	handle(SIGTRAP);
	handle(SIGILL);
	obey();
	die(0);
}
