module trapless

go 1.26
