module corral

go 1.25
