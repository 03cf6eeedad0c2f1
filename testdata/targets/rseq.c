/*
 * rseq: a thread adds to a counter in a restartable sequence (rseq(2)) while another makes the kernel
 * preempt it. Prints "critical START LENGTH ABORT" relative to bump(). An addition that was interrupted is
 * done again: the counter must be exact.
 */
#include "target.h"
#include <linux/rseq.h>
#include <sched.h>
#include <sys/rseq.h>

static struct rseq *area;
static uint64_t counter;
static atomic_ulong aborts;

extern const struct rseq_cs descriptor[] __attribute__((visibility("hidden")));
extern char critical_start[], critical_end[], critical_abort[];

/* Adds 1 to *count; returns 0, or 1 when the kernel sent us to the abort handler. */
int bump(struct rseq *area, uint64_t *count);
__asm__(".pushsection .text\n.p2align 4\n.globl bump\n.type bump, @function\nbump:\n.cfi_startproc\n"
	"lea descriptor(%rip), %rax\n"
	"mov %rax, 8(%rdi)\n"		/* area->rseq_cs */
	".globl critical_start\ncritical_start:\n"
	"mov (%rsi), %rcx\n"
	"lea 1(%rcx), %rcx\n"
	"mov %rcx, (%rsi)\n"
	".globl critical_end\ncritical_end:\n"
	"xor %eax, %eax\n"
	"ret\n"
	".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n" /* ud1 with the signature of glibc */
	".globl critical_abort\ncritical_abort:\n"
	"mov $1, %eax\n"
	"ret\n.cfi_endproc\n.size bump, . - bump\n.popsection\n"
	".pushsection __rseq_cs, \"aw\"\n.p2align 5\n.hidden descriptor\n.globl descriptor\ndescriptor:\n"
	".long 0, 0\n.quad critical_start, critical_end - critical_start, critical_abort\n.popsection\n");

static void *disturb(void *arg)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(*(int *)arg, &one);
	pthread_setaffinity_np(pthread_self(), sizeof one, &one);
	while (!target_stopping)
		sched_yield();
	return NULL;
}

static void *count(void *arg)
{
	uint64_t want = 0;

	area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
	while (!target_stopping) {
		while (bump(area, &counter))
			aborts++;
		want++;
		CHECK(counter == want, "the counter is %lu, want %lu", counter, want);
	}
	target_counts("bump", want + aborts);
	return arg;
}

int main(void)
{
	pthread_t threads[2];
	int cpu = sched_getcpu();

	printf("critical %ld %ld %ld\n", (long)critical_start - (long)bump, (long)(critical_end - critical_start),
	       (long)critical_abort - (long)bump);
	fflush(stdout);
	if (__rseq_size == 0)
		printf("this process has no rseq area\n");
	target_ready();
	if (__rseq_size) {
		CHECKED(0, pthread_create(&threads[0], NULL, disturb, &cpu));
		CHECKED(0, pthread_create(&threads[1], NULL, count, NULL));
	}
	target_wait();
	if (__rseq_size) {
		CHECKED(0, pthread_join(threads[0], NULL));
		CHECKED(0, pthread_join(threads[1], NULL));
	}
	return target_ok();
}
