module vernier.dev/tools/own

go 1.26.0
