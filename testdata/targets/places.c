/*
 * places: on each line of input it calls probed() with strings in different places: constant, in its data, in
 * memory from malloc, on its stack, on that of a new thread, and in a page that it has mapped right behind its
 * data, as long as that is there: "unmap" takes it away, but not the pointer.
 */
#include "target.h"
#include <sys/mman.h>

extern char end[]; /* of the data (end(3)) */

PROBED unsigned long probed(const char *s, unsigned long sum)
{
	return sum * 31 + (s != NULL);
}

static char data[] = "data", bss[64];

static void call(const char *s)
{
	CHECK(probed(s, 7) == 7 * 31ul + 1, "probed(%p)", (void *)s);
}

static void *in_thread(void *arg)
{
	char text[] = "thread";

	call(text);
	return arg;
}

int main(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	char line[64], stack[] = "stack", *heap = strdup("heap");
	char *edge = (char *)(((uintptr_t)end + page - 1) & -page);
	pthread_t thread;

	strcpy(bss, "bss");
	CHECK(mmap(edge, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == edge, "mmap");
	strcpy(edge, "edge");
	target_ready();
	while (fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0) {
		if (strcmp(line, "unmap\n") == 0)
			CHECKED(0, munmap(edge, page));
		call("constant");
		call(data);
		call(bss);
		call(heap);
		call(stack);
		call(edge);
		CHECKED(0, pthread_create(&thread, NULL, in_thread, NULL));
		CHECKED(0, pthread_join(thread, NULL));
		printf("done\n");
	}
	return target_ok();
}
