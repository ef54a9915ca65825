module corral

go 1.27
