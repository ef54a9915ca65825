module example.com/{{name}}

go 1.27

require corral v0.0.0

replace corral => ./corral-sdk
